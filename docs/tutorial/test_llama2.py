# test_llama2.py
import pytest
import torch
from llama2 import build
from torch.distributed.fsdp import fully_shard


@pytest.mark.world_size(64, simulate=True, ranks=[0], timeout=600)
@pytest.mark.max_memory(peak="80 GB")
def test_fits_64_gpus(device_mesh, shardcheck):
    model, batch = build()
    for layer in [*model.model.layers, model]:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    step()  # the optimizer makes its state
    with shardcheck.measure(model, optimizer):
        step()
