"""Plan how many GPUs a model needs, by closed form or by simulation.

```python
from pytest_shardcheck import plan

zero3 = plan.ClosedForm(params=70_000_000_000, stage=3)
assert plan.smallest_world(zero3, limit="80 GB").world == 14
```

Importing this imports neither torch nor matplotlib.
"""

from pytest_shardcheck.formulas import (
    Accounting,
    ActivationBytes,
    Component,
    Transformer,
    accounting,
    transformer_activations,
)
from pytest_shardcheck.plan.chart import save_chart
from pytest_shardcheck.plan.closed_form import ClosedForm
from pytest_shardcheck.plan.document import document, simulated_document
from pytest_shardcheck.plan.footprint import Estimate, Footprint, Part, ShrinkingEstimate
from pytest_shardcheck.plan.questions import Sent, SimulatedStep
from pytest_shardcheck.plan.search import (
    Answer,
    Plan,
    first_that_fits,
    plan_closed_form,
    plan_simulated,
    smallest_world,
)
from pytest_shardcheck.plan.simulated import Simulated
from pytest_shardcheck.plan.simulated_table import simulated_heading, simulated_tables
from pytest_shardcheck.plan.table import heading, tables

__all__ = [
    "Accounting",
    "ActivationBytes",
    "Answer",
    "ClosedForm",
    "Component",
    "Estimate",
    "Footprint",
    "Part",
    "Plan",
    "Sent",
    "ShrinkingEstimate",
    "Simulated",
    "SimulatedStep",
    "Transformer",
    "accounting",
    "document",
    "first_that_fits",
    "heading",
    "plan_closed_form",
    "plan_simulated",
    "save_chart",
    "simulated_document",
    "simulated_heading",
    "simulated_tables",
    "smallest_world",
    "tables",
    "transformer_activations",
]
