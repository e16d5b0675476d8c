// What the page draws with, and nothing else: `npm ci && npm run build` makes echarts.min.js of it.
import * as echarts from "echarts/core";
import { CustomChart, LineChart } from "echarts/charts";
import {
  AxisPointerComponent,
  DataZoomInsideComponent,
  DataZoomSliderComponent,
  GridComponent,
  MarkLineComponent,
  TooltipComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

echarts.use([
  AxisPointerComponent,
  CanvasRenderer,
  CustomChart,
  DataZoomInsideComponent,
  DataZoomSliderComponent,
  GridComponent,
  LineChart,
  MarkLineComponent,
  TooltipComponent,
]);

// Only these are used; the rest would stay in the file.
export const { init, version } = echarts;
export const { clipRectByRect: clipRect } = echarts.graphic;
