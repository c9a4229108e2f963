"""The tensor cores of a real GPU, busy and idle."""

import time
from collections.abc import Callable

import pytest

from leverbench.profiling.tensor_activity import sampled, why_not

torch = pytest.importorskip("torch")

ABSENT = why_not(["gpu0"])
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
    pytest.mark.skipif(ABSENT is not None, reason=f"nothing is measured: {ABSENT}"),
]


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Returns the shares of one second of work, which has begun before."""

    def keep_on(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            work()
            torch.cuda.synchronize()

    # The first use loads kernels, and the counters of a sample may be 0.1 s old.
    keep_on(0.5)
    with sampled(["gpu0"]) as activity:
        keep_on(1.0)
    assert activity.figures is not None, activity.reason
    (gpu,) = activity.figures["gpus"]
    return {name: share for name, share in gpu.items() if name != "gpu"}


def test_matrix_products_use_the_tensor_cores_and_sums_do_not(capsys):
    # Ten products of 1.1 TFLOP are some 15 ms between two waits; ten sums of 1 GiB some 7 ms.
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x, y = (torch.randn(1 << 28, device="cuda") for _ in range(2))
    product, total = torch.empty_like(a), torch.empty_like(x)

    products = measured(lambda: [torch.mm(a, b, out=product) for _ in range(10)])
    sums = measured(lambda: [torch.add(x, y, out=total) for _ in range(10)])

    with capsys.disabled():
        print(f"\nproducts {products}\nsums {sums}")
    assert products["any_tensor"] > 0.4
    assert sums["any_tensor"] < 0.02
    # The sums are not idle: they wait for memory.
    assert sums["dram_bandwidth"] > 0.4
    assert sums["sm_active"] > 0.4
    for shares in (products, sums):
        assert all(0 <= share <= 1.01 for share in shares.values())
