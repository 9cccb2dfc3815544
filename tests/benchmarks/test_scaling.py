"""The model of a step's time: its formulas, its fit, and that the program runs."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scaling import fitting, formulas, parts, tables

ROOT = Path(__file__).parents[2]
FOREVER = math.inf
COSTS = fitting.Costs(
    cores=2,
    compute=(0.002, 0.004, 0.0001, 0.0004),
    input=(0.0002, 0.00001),
    wait=2e-4,
    work=1e-4,
    beta=1e-9,
    held=(0.01, 0.0005),
    written=(0.02, 0.002),
)
GRADIENTS = 11_000_000
ASSUMED = tables.Assumed(
    bandwidth=1.25, latency=100, mtbf=6300, restart=300, batch=64, global_batch=65_536
)


@pytest.mark.parametrize("formula", [formulas.ring_all_reduce, formulas.halving_all_reduce])
def test_one_worker_exchanges_nothing(formula):
    assert formula(1, 1e9, 1.0, 1.0) == 0


def test_the_ring_has_two_rounds_a_peer():
    # 4 workers: a reduce-scatter and an all-gather of 3 rounds, each of a quarter of the bytes.
    assert formulas.ring_all_reduce(4, 1e6, 1e-3, 0) == pytest.approx(6e-3)
    assert formulas.ring_all_reduce(4, 1e6, 0, 1e-9) == pytest.approx(1.5e-3)
    assert formulas.ring_all_reduce(4, 1e6, 1e-3, 1e-9, packs=3) == pytest.approx(19.5e-3)


def test_bytes_of_the_ring_have_a_limit_and_its_messages_none():
    assert formulas.ring_all_reduce(10_000, 1e6, 0, 1e-9) == pytest.approx(2e-3, rel=1e-3)
    assert formulas.ring_all_reduce(10_000, 1e6, 1e-4, 0) == pytest.approx(2.0, rel=1e-3)


def test_halving_sends_as_much_in_fewer_messages():
    assert formulas.halving_all_reduce(1024, 1e6, 1e-4, 0) == pytest.approx(20e-4)
    assert formulas.halving_all_reduce(1000, 1e6, 1e-4, 0) == pytest.approx(20e-4)
    for workers in (2, 5, 64):
        ring, halving = (
            formula(workers, 1e6, 0, 1e-9)
            for formula in (formulas.ring_all_reduce, formulas.halving_all_reduce)
        )
        assert halving == pytest.approx(ring)
    assert formulas.halving_all_reduce(2, 8, 1, 1) == formulas.ring_all_reduce(2, 8, 1, 1)


@pytest.mark.parametrize(
    ("workers", "cores", "threads", "crowd"),
    [(1, 2, 2, 1), (2, 2, 1, 1), (4, 2, 1, 2), (8, 2, 1, 4), (3, 8, 2, 1), (1, 1, 1, 1)],
)
def test_workers_share_the_cores(workers, cores, threads, crowd):
    assert formulas.threads_of(workers, cores) == threads
    assert formulas.crowding(workers, cores) == crowd


def test_an_execution_lasts_a_fifth_of_a_second():
    assert formulas.steps_per_execution(0.01, 0) == 20
    assert formulas.steps_per_execution(0.01, 0.1) == 10
    assert formulas.steps_per_execution(0.01, 5) == 1
    assert formulas.steps_per_execution(3, 0) == 1


@pytest.mark.parametrize(("mtbf", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_intervals_that_daly_gives(mtbf, best):
    """The paper's figures 3 to 5, in minutes, for dumps of 5 minutes."""
    assert formulas.daly_interval(5, mtbf) == pytest.approx(best, rel=0.01)


def test_young_is_the_limit_of_daly():
    assert formulas.young_interval(5, 24 * 60) == pytest.approx(120)
    for mtbf, within in ((1e4, 0.1), (1e6, 0.01), (1e10, 0.0001)):
        young, daly = formulas.young_interval(10, mtbf), formulas.daly_interval(10, mtbf)
        assert daly == pytest.approx(young, rel=within)


def test_intervals_at_their_limits():
    assert formulas.daly_interval(10, 4) == 4
    assert formulas.daly_interval(10, FOREVER) == FOREVER
    assert formulas.daly_interval(0, 100) == 0
    assert formulas.young_interval(0, 100) == 0


def test_auto_saves_for_a_hundredth_of_the_time():
    assert formulas.auto_interval(0.02, 0.5) == pytest.approx(52)
    assert formulas.auto_interval(0.001, 0.01) == 5


def test_goodput_without_failures():
    assert formulas.goodput(FOREVER, 10, FOREVER, restart=300) == 1
    assert formulas.goodput(90, 10, FOREVER, restart=300) == pytest.approx(0.9)
    assert formulas.goodput(90, 0, FOREVER) == 1


def test_goodput_at_its_limits():
    assert formulas.goodput(FOREVER, 10, 1000) == 0
    assert formulas.goodput(1e9, 10, 1) == 0
    # Snapshots that cost nothing leave the restarts.
    assert formulas.goodput(1e-3, 0, 1000, restart=100) == pytest.approx(math.exp(-0.1), rel=1e-4)
    # Rare failures, by Young: half of what is lost goes into snapshots, half is done again.
    young = formulas.young_interval(1, 1e8)
    lost = 1 - formulas.goodput(young, 1, 1e8)
    assert lost == pytest.approx(math.sqrt(2 * 1 / 1e8), rel=0.01)


@pytest.mark.parametrize("mtbf", [100, 1000, 100_000])
def test_dalys_interval_is_about_the_best(mtbf):
    best = max(formulas.goodput(1.01**n, 10, mtbf, 60) for n in range(1500))
    daly = formulas.goodput(formulas.daly_interval(10, mtbf), 10, mtbf, 60)
    assert best * 0.998 < daly <= best * 1.0001


def test_goodput_is_that_of_a_simulation():
    interval, cost, mtbf, restart = 100.0, 10.0, 300.0, 20.0
    draw, clock, segments = random.Random(1), 0.0, 20_000
    for _ in range(segments):
        wanted = interval + cost
        while (failure := draw.expovariate(1 / mtbf)) < wanted:
            clock += failure
            # Restarting can fail as well, and is then begun again.
            wanted = interval + cost + restart
        clock += wanted
    expected = formulas.goodput(interval, cost, mtbf, restart)
    assert segments * interval / clock == pytest.approx(expected, rel=0.02)


def test_what_is_still_being_written_is_lost_too():
    at_once = formulas.goodput(100, 10, 1000, 60)
    assert formulas.goodput(100, 10, 1000, 60, latency=10) == at_once
    assert formulas.goodput(100, 10, 1000, 60, latency=3) == at_once
    assert formulas.goodput(100, 10, 1000, 60, latency=40) == formulas.goodput(100, 10, 1000, 90)


def test_any_host_ends_the_work_of_all():
    assert formulas.cluster_mtbf(6300, 10_000) == pytest.approx(0.63)


def test_least_squares_finds_what_made_the_values():
    rows = [(1, 10), (1, 1000), (1, 100_000)]
    assert fitting.least_squares(rows, [r[0] * 5 + r[1] * 3 for r in rows]) == pytest.approx((5, 3))


def test_least_squares_finds_nothing_below_zero():
    rows = [(1, 1), (1, 2), (1, 3)]
    fixed, slope = fitting.least_squares(rows, [0.9, 2.0, 3.1])
    assert fixed == 0
    assert slope == pytest.approx(1, rel=0.05)


def test_large_values_do_not_drown_small_ones():
    rows = [(1, 0), (1, 0), (1, 1e6)]
    fixed, _ = fitting.least_squares(rows, [0.9, 1.1, 1e6])
    assert fixed == pytest.approx(1, rel=0.05)


def found(workers: int) -> parts.Found:
    """What a host would be measured to take that is as the model says, with COSTS."""
    plan = parts.Plan()
    without = {batch: fitting.step_here(COSTS, batch, 0, workers) for batch in plan.batches}
    own = workers <= COSTS.cores
    return parts.Found(
        compute={batch: step.compute for batch, step in without.items()} if own else {},
        input={batch: step.input for batch, step in without.items()} if own else {},
        exchange={}
        if workers == 1
        else {size: fitting.exchange_here(COSTS, workers, size) for size in plan.sizes},
        steps={64: fitting.step_here(COSTS, 64, GRADIENTS, workers).seconds},
        held={size: COSTS.held[0] + COSTS.held[1] * size for size in plan.states},
        written={size: COSTS.written[0] + COSTS.written[1] * size for size in plan.states},
        gradients=GRADIENTS,
    )


def test_the_fit_finds_the_costs_that_made_the_measurements():
    fitted = fitting.fit({workers: found(workers) for workers in (1, 2, 4, 8)}, cores=2)
    for mine, theirs in zip(fitted, COSTS, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6)


def test_the_most_workers_are_predicted_and_not_fitted():
    measured = {workers: found(workers) for workers in (1, 2, 4, 8)}
    twice = {size: 2 * seconds for size, seconds in measured[8].exchange.items()}
    measured[8] = measured[8]._replace(exchange=twice)
    assert fitting.fit(measured, cores=2).wait == pytest.approx(COSTS.wait)
    assert fitting.fit({1: found(1), 2: found(2)}, cores=2).wait == pytest.approx(COSTS.wait)


def test_a_step_of_one_worker_is_computing_and_input():
    step = fitting.step_here(COSTS, 64, GRADIENTS, 1)
    assert step.exchange == step.reading == 0
    assert step.compute == pytest.approx(0.002 + 0.004 / 2 + 64 * (0.0001 + 0.0004 / 2))
    assert step.seconds == pytest.approx(step.compute + step.input)
    there = fitting.step_there(COSTS, 64, GRADIENTS, 1, fitting.Network(1, 1, 1))
    assert there == step


def test_workers_on_the_same_cores_take_longer():
    two, four = (fitting.step_here(COSTS, 64, GRADIENTS, workers) for workers in (2, 4))
    assert four.compute == pytest.approx(2 * two.compute)
    assert four.input == pytest.approx(2 * two.input)


def test_messages_of_some_bytes_take_no_work():
    few, many = (fitting.exchange_here(COSTS, 4, size) for size in (64, 4096))
    assert few == pytest.approx(6 * 2e-4 + 2 * 1.5 * 64e-9)
    assert many == pytest.approx(6 * (2e-4 + 2 * 1e-4) + 2 * 1.5 * 4096e-9)
    apart = fitting.Network(2e-4, 1e-4, 1e-9)
    assert apart.all_reduce(4, 64) == pytest.approx(6 * 2e-4 + 1.5 * 64e-9)
    assert apart.all_reduce(4, 4096) == pytest.approx(6 * 3e-4 + 1.5 * 4096e-9)


def test_a_perfect_network_scales_perfectly():
    one, many = (
        fitting.step_there(COSTS, 64, GRADIENTS, workers, fitting.Network(0, 0, 0)).seconds
        for workers in (1, 10_000)
    )
    assert one == many


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


EFFICIENCIES = (3, 6, 8, 10)
"""Columns: weak and strong scaling, each in a ring and by halving."""


def test_the_tables_begin_with_one_worker_that_loses_nothing():
    rows = rows_of(tables.carried_on(COSTS, ASSUMED, GRADIENTS))
    assert [row[0] for row in rows] == [f"{workers:,}" for workers in tables.WORKERS]
    assert [rows[0][i] for i in EFFICIENCIES] == ["100 %"] * 4
    columns = [[float(row[i].rstrip(" %")) for row in rows] for i in EFFICIENCIES]
    assert all(column == sorted(column, reverse=True) for column in columns)
    for ring, halving in (columns[:2], columns[2:]):
        assert all(a <= b for a, b in zip(ring, halving, strict=True))


def test_more_hosts_fail_more_often():
    rows = rows_of(tables.failures(COSTS, ASSUMED, GRADIENTS))
    useful = [float(row[4].rstrip(" %")) for row in rows]
    assert useful == sorted(useful, reverse=True)
    assert 99.5 < useful[0] <= 100
    assert useful[-1] == pytest.approx(100 * math.exp(-300 / 2268), rel=0.01)


def test_more_steps_an_execution_are_fewer_readings():
    found = rows_of(tables.carried_on(COSTS, ASSUMED, GRADIENTS))
    told = rows_of(tables.carried_on(COSTS, ASSUMED._replace(steps_per_execution=100), GRADIENTS))
    ours, theirs = (float(rows[-1][2].replace(",", "")) for rows in (found, told))
    assert ours == pytest.approx(100 * theirs, rel=0.01)


def test_another_model_can_be_assumed():
    large = ASSUMED._replace(gradients=4000, state=12_000, compute=500)
    rows = rows_of(tables.carried_on(COSTS, large, GRADIENTS))
    assert rows[0][1] == "500"
    # Two workers send 4 GB, which cost the cores and the network.
    assert float(rows[1][1].replace(",", "")) == pytest.approx(500 + 4000 * (1 + 0.8), rel=0.01)


def run(*options: str) -> str:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_program_reads_what_was_kept_and_writes_the_page(tmp_path):
    page, kept = tmp_path / "page.md", tmp_path / "kept.json"
    page.write_text("before\n<!-- scaling -->\nold\n<!-- end of scaling -->\nafter\n")
    measured = {workers: found(workers)._asdict() for workers in (1, 2, 4, 8)}
    kept.write_text(json.dumps({"machine": "Here", "cores": 2, "found": measured}))
    told = run("--load", str(kept), "--mtbf", "100", "--write", str(page))
    assert "**Measured**: Here" in told
    assert "100 h between failures" in told
    assert "error is 0% at the median" in told
    text = page.read_text()
    assert text.startswith("before\n<!-- scaling -->\n**Measured**")
    assert text.endswith("<!-- end of scaling -->\nafter\n")
    assert "\nold\n" not in text


@pytest.mark.long
def test_the_program_measures(tmp_path):
    kept = tmp_path / "kept.json"
    assert "| 10,000 |" in run("--quick", "--save", str(kept))
    measured = json.loads(kept.read_text())["found"]
    assert list(measured) == ["1", "2"]
    for name in ("compute", "input", "steps", "held", "written"):
        assert all(seconds > 0 for seconds in measured["1"][name].values())
        assert measured["1"][name]
    assert all(seconds > 0 for seconds in measured["2"]["exchange"].values())
