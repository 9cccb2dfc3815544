"""Tests mirror the tree: those of ``kfit/steps/jit.py`` are in ``tests/steps/test_jit.py``.

A module without a test file of its name needs a line in ``TESTED_BY``, and a test file of no module
one in ``WHOLE``. A test file of its name is better than a line, and a test that touches the module
better than a reason.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("kfit", "callbacks", "datasets")
TINY = 40
"""Lines up to which a module may have a reason in the place of a test."""

TESTED_BY: dict[str, str] = {
    # A module -> the file in tests/ that imports it; or "that file: what it and the module name",
    # where what the module does is seen from outside of it; or, for tiny ones, why there is none.
    "callbacks/chief_mark.py": "training/test_chief_only.py: TrainingCallback",
    "datasets/fashion_mnist.py": "datasets/test_download.py",
    "datasets/mnist.py": "datasets/test_download.py",
    "kfit/__main__.py": "commands/test_main.py: kfit",
    "kfit/checkpoint/fits.py": "checkpoint/test_marks.py",
    "kfit/checkpoint/starts.py": "callbacks/test_run_again_in_one_process.py: another model and",
    "kfit/checkpoint/state.py": "callbacks/test_backup_and_restore.py",
    "kfit/checkpoint/writing_elsewhere.py": "training/test_chief_only.py: append",
    "kfit/checkpoint/written_files.py": "callbacks/test_memory.py",
    "kfit/cluster/meeting.py": "cluster/test_rendezvous.py: kfit",
    "kfit/commands/program.py": "commands/test_main.py: script.py",
    "kfit/commands/manifest.py": "manifest/test_kubernetes.py: --backup-claim",
    "kfit/commands/server.py": "commands/test_main.py: worker:INDEX",
    "kfit/distribute/contexts.py": "steps/test_static_shapes.py: replica_index",
    "kfit/distribute/factory.py": "distribute/test_tpu.py",
    "kfit/distribute/host_collectives.py": "training/test_save_points.py: is_alone",
    "kfit/distribute/initial_values.py": "distribute/programs/cases.py: int8",
    "kfit/distribute/placed_optimizers.py": "distribute/test_placement.py: optimizer",
    "kfit/distribute/pipeline_parts.py": "a walk, which fingerprints/test_pipelines.py takes",
    "kfit/distribute/pipeline_seeds.py": "inputs/test_pipeline_state.py: deterministic=False",
    "kfit/distribute/ring_setup.py": "distribute/test_multi_worker.py: cannot reach",
    "kfit/distribute/sharded_variables.py": "distribute/programs/asynchronous.py: shards",
    "kfit/distribute/strategy.py": "steps/test_jit.py",
    "kfit/doctor/examination.py": "commands/test_doctor.py",
    "kfit/evaluation/checkpoints.py": "evaluation/test_workflow.py: on_saved",
    "kfit/evaluation/evaluator.py": "evaluation/test_workflow.py: SnapshotMismatchError",
    "kfit/evaluation/inline_evaluation.py": "evaluation/test_workflow.py",
    "kfit/exactness/assignments.py": "exactness/test_layer_state.py: aggregation",
    "kfit/exactness/metric_sums.py": "exactness/cases/own_steps.py: Mean",
    "kfit/exactness/random_draws.py": "exactness/test_randomness.py: seed",
    "kfit/exactness/batch_kinds.py": "exactness/test_scalar_estimates.py: gradient",
    "kfit/exactness/batch_warnings.py": "exactness/test_across_examples.py: combines",
    "kfit/graphs/chosen_rows.py": "exactness/test_scalar_estimates.py: boolean_mask",
    "kfit/graphs/kinds.py": "names of kinds, which kind_reading.py and its tests use",
    "kfit/graphs/code_of_steps.py": "exactness/test_across_examples.py: train_step",
    "kfit/exactness/gradient_sums.py": "exactness/test_optimizer_update.py: scale_loss",
    "kfit/exactness/joint_update.py": "exactness/cases/optimizers.py: ema_overwrite_frequency",
    "kfit/exactness/moments.py": "exactness/cases/layers.py: BatchNormalization",
    "kfit/exactness/patches.py": "internals/test_patching.py",
    "kfit/exactness/row_states.py": "exactness/test_layer_state.py: stateful",
    "kfit/heartbeat/layout.py": "heartbeat/test_task.py: HeartbeatReader",
    "kfit/inputs/__init__.py": "inputs/test_arrays.py",
    "kfit/inputs/batch_maker.py": "inputs/test_processes.py: a process that makes its batches",
    "kfit/inputs/batch_process.py": "inputs/test_processes.py: __getitem__",
    "kfit/inputs/batches.py": "inputs/test_arrays.py: Batches",
    "kfit/inputs/dataset_reading.py": "inputs/test_going_on.py: experimental_external_state_policy",
    "kfit/inputs/foreign_passes.py": "inputs/test_going_on.py: evaluate",
    "kfit/inputs/late_shuffles.py": "inputs/test_going_on.py: rerandomize_each_iteration",
    "kfit/inputs/own_state.py": "inputs/test_going_on.py: set_state",
    "kfit/internals/callbacks.py": "internals/test_private.py",
    "kfit/internals/tf_data.py": "internals/test_private.py",
    "kfit/internals/functions.py": "internals/test_private.py",
    "kfit/internals/layers.py": "internals/test_private.py",
    "kfit/internals/losses.py": "internals/test_private.py",
    "kfit/internals/models.py": "internals/test_private.py",
    "kfit/internals/optimizers.py": "internals/test_private.py",
    "kfit/internals/patch_points.py": "internals/test_private.py",
    "kfit/internals/randomness.py": "internals/test_private.py",
    "kfit/internals/strategies.py": "internals/test_private.py",
    "kfit/manifest/tfjob.py": "manifest/test_kubernetes.py: cleanPodPolicy",
    "kfit/objects/entries.py": "objects/test_bindings.py",
    "kfit/objects/hidden_state.py": "checkpoint/test_loose_variables.py: RandomStandardNormal",
    "kfit/objects/search.py": "objects/test_attributes.py: defaultdict",
    "kfit/plots/curves.py": "plots/test_plot_history.py: CSVLogger",
    "kfit/plots/shown_figure.py": "plots/test_plot_history.py: _repr_png_",
    "kfit/remote/launch_error.py": "remote/test_launch.py: LaunchError",
    "kfit/remote/ray_actor.py": "remote/test_ray_backend.py: agent",
    "kfit/report/figures.py": "report/test_account.py: seconds_of_training",
    "kfit/report/lost_steps.py": "report/test_account.py: KFIT_GENERATION",
    "kfit/report/one_batch.py": "report/test_step_parts.py",
    "kfit/report/report.py": "report/test_account.py: to_json",
    "kfit/report/text.py": "report/test_account.py: goodput",
    "kfit/steps/input_times.py": "report/test_account.py: examples",
    "kfit/steps/async_execution.py": "distribute/test_parameter_server.py: jit_compile",
    "kfit/steps/execution.py": "callbacks/test_backup_and_restore.py",
    "kfit/steps/frozen.py": "test_trainer.py: thawed",
    "kfit/steps/predicted.py": "steps/test_prediction.py: A prediction",
    "kfit/steps/replica_parts.py": "steps/test_returned.py: bincount",
    "kfit/steps/replica_step.py": "exactness/test_replica_context.py: XLA",
    "kfit/supervisor/backend.py": "supervisor/test_healthy_and_hung.py",
    "kfit/supervisor/process_group.py": "supervisor/test_supervisor.py",
    "kfit/supervisor/reaper.py": "supervisor/test_supervisor.py",
    "kfit/verification/beginning.py": "verification/test_verify.py: random",
    "kfit/verification/causes.py": "verification/test_verify.py: looks across examples",
    "kfit/verification/layer_probe.py": "verification/test_verify.py: predict_step",
    "kfit/verification/report.py": "verification/test_verify.py: Verification",
    "kfit/verification/runs.py": "verification/test_verify.py: rounding",
    "kfit/commands/inspected_snapshots.py": "commands/test_inspect.py: good",
    "kfit/commands/snapshot_weights.py": "commands/test_inspect.py: bit for bit",
    "kfit/commands/verified_fit.py": "commands/test_verify.py: COULD NOT RUN",
    "kfit/training/fit_executor.py": "callbacks/test_memory.py: in the middle of",
    "kfit/training/callback.py": "training/test_save_points.py",
    "kfit/training/batch_hooks.py": "training/test_loops.py: watches_batches",
    "kfit/training/call.py": "training/test_loops.py: watches_batches",
    "kfit/training/evaluate_aside.py": "evaluation/test_workflow.py: evaluate_aside",
    "kfit/training/which_fit.py": "callbacks/test_phases_left_out.py: began with",
}

WHOLE: dict[str, str] = {
    # A test file in a folder of the tree -> what it is about, since that is no one module.
    "callbacks/test_around_fit.py": "programs of several `fit`s, killed and run again",
    "callbacks/test_harmless.py": "the files of others, wherever any callback writes",
    "callbacks/test_memory.py": "Keras' own callbacks, and the files that they write",
    "callbacks/test_run_again_in_one_process.py": "interrupted and run again, in a notebook",
    "callbacks/test_one_data_set.py": "several `fit`s on one data set, killed and run again",
    "supervisor/test_live_run.py": "what a person sees of `kfit run`, in a terminal and in a file",
    "callbacks/test_phases_left_out.py": "programs that leave out what they have done",
    "callbacks/test_tensorboard_in_a_browser.py": "what TensorBoard shows of a training",
    "commands/test_keras_fit.py": "a program without a line of kfit, in one process and on workers",
    "commands/test_published_tutorial.py": "TensorFlow's own program for several workers",
    "distribute/test_cluster_resolvers.py": "TensorFlow's resolvers, from the task to the strategy",
    "distribute/test_evaluator.py": "real workers and an evaluator, some of which are killed",
    "distribute/test_gpus.py": "all that needs a GPU",
    "distribute/test_gradient_dtype.py": "one argument, of several adapters",
    "distribute/test_unlike_specs.py": "real tasks whose specs differ",
    "exactness/test_cases.py": "C1: the table of cases, each on several replicas and on one device",
    "exactness/test_matrix.py": "C1: all cases on every combination of devices",
    "exactness/test_precision.py": "C1: types of more and of fewer bits",
    "exactness/test_values_of_batches.py": "vectors of a batch, in losses and in metrics",
    "exactness/test_randomness.py": "C1: random numbers, through layers and whole trainings",
    "inputs/test_as_in_keras.py": "what Keras' `fit` asks of data, of any kind",
    "inputs/test_fetching_ahead.py": "batches ahead of their steps, of any kind",
    "checkpoint/test_snapshot_fuzz.py": "snapshots that strangers have written, of any kind",
    "checkpoint/test_golden.py": "snapshots of this format and of earlier ones",
    "checkpoint/test_store_states.py": "whatever may happen to a store, in any order",
    "supervisor/test_supervisor_states.py": "whatever may happen to tasks, in any order",
    "test_soak.py": "the soak test: that it sees what it must",
    "inputs/test_going_on.py": "data of every kind after a restart",
    "inputs/test_libraries.py": "data of other libraries, each by its own classes",
    "report/test_restarts.py": "a report of real tasks that are killed and started again",
    "supervisor/test_healthy_and_hung.py": "real programs that are slow, and that hang",
    "supervisor/test_supervisor_restarts.py": "real tasks that are started again",
    "supervisor/test_several_fits.py": "a program of several `fit`s that is killed in later ones",
    "test_types.py": "what type checkers say of a program that uses kfit",
    "test_architecture.py": "the drawing and the paths of docs/architecture.md",
    "test_deletions.py": "which code may delete files",
    "test_bad_input.py": "bad input, and code of the user's that fails, on real workers",
    "test_growth.py": "that nothing grows with the length of a training",
    "test_faults_of_runs.py": "faults of whole runs, which fault sites bring about",
    "test_kills.py": "real processes that are killed at any moment",
    "test_layers.py": "which module may import which",
    "test_links.py": "the links of the documentation",
    "test_mirror.py": "which tests there are",
    "test_readme.py": "the program and the commands of the README",
    "test_no_skips.py": "that tests which must run are not skipped",
    "test_networks.py": "networks that fail or are slow, between two emulated hosts",
    "test_one_fails.py": "a failure of one worker alone",
    "test_packaging.py": "what is installed",
    "training/test_as_in_keras.py": "what programs see of the loops, beside Keras'",
}

IMPORT = re.compile(r"\bfrom (kfit[\w.]*) import (\([^)]*\)|[^\n;]*)")

OF_ITS_OWN = re.compile(r"^(?:def|class) (?!__)", re.MULTILINE)
"""What an `__init__.py` holds that does more than hand on names."""


def mirror_of(module: str) -> str:
    """The test file of a module, as a path in tests/."""
    *folders, name = module.removeprefix("kfit/").split("/")
    return "/".join([*folders, f"test_{name}"])


def imported_by(text: str) -> set[str]:
    """The modules that code imports or names in full, that of programs in its texts included."""
    found = set(re.findall(r"\bkfit(?:\.\w+)+", text))
    for package, names in IMPORT.findall(text):
        found |= {f"{package}.{name}" for name in re.findall(r"\w+", names)}
    return {name.rsplit(".", depth)[0] for name in found for depth in range(name.count("."))}


def installed(module: str) -> str:
    """The name by which a module is imported."""
    name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("kfit.") else f"kfit.{name}"


def wrong_with(root: Path, module: str, told: str) -> str:
    """What is wrong with what is told of a module without a test file of its name; or nothing."""
    path, _, word = told.partition(": ")
    text = (root / module).read_text(encoding="utf-8")
    if not path.endswith(".py"):
        lines = len(text.splitlines())
        return f"has {lines} lines, so that a reason is not enough" if lines > TINY else ""
    file = root / "tests" / path
    if not file.is_file():
        return f"there is no tests/{path}"
    tests = file.read_text(encoding="utf-8")
    if word:
        whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
        lacking = [name for name, code in ((module, text), (path, tests)) if not whole.search(code)]
        return f"{lacking[0]} does not name {word!r}" if lacking else ""
    return "" if installed(module) in imported_by(tests) else f"tests/{path} does not import it"


def problems_of(root: Path, tested_by: dict[str, str], whole: dict[str, str]) -> list[str]:
    """What is wrong with the tests of a tree, one line each."""
    modules = [
        str(path.relative_to(root))
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if path.name != "__init__.py" or OF_ITS_OWN.search(path.read_text(encoding="utf-8"))
    ]
    # Folders of tests that are none of the tree, such as examples/, are not looked into.
    rooms = {mirror_of(module).rpartition("/")[0] for module in modules}
    tests = {str(path.relative_to(root / "tests")) for path in (root / "tests").rglob("test_*.py")}
    tests = {path for path in tests if path.rpartition("/")[0] in rooms}
    mirrors = {mirror_of(module): module for module in modules}
    problems = []
    for module in modules:
        if mirror_of(module) in tests:
            continue
        if module not in tested_by:
            problems.append(f"{module}: write tests/{mirror_of(module)}")
        elif wrong := wrong_with(root, module, tested_by[module]):
            problems.append(f"{module}: {wrong}")
    for module in tested_by:
        if module not in modules:
            problems.append(f"{module}: is gone; take it out of TESTED_BY")
        elif mirror_of(module) in tests:
            problems.append(f"{module}: has tests of its own now; take it out of TESTED_BY")
    for path in sorted(tests - mirrors.keys() - whole.keys()):
        problems.append(f"tests/{path}: name it for the module that it is about")
    for path in whole:
        if path not in tests:
            problems.append(f"tests/{path}: is gone; take it out of WHOLE")
        elif path in mirrors:
            problems.append(f"tests/{path}: is that of {mirrors[path]}; take it out of WHOLE")
    return problems


def test_every_module_has_its_tests() -> None:
    assert problems_of(ROOT, TESTED_BY, WHOLE) == []


FILES = {
    "kfit/a.py": "x = 'word'\n",
    "kfit/room/b.py": "class Thing: ...\n" + "\n" * TINY,
    "tests/test_a.py": "from kfit.a import x\n",
    "tests/room/test_all.py": "PROGRAM = 'from kfit.room import (b,\\n c)'\n# a word\n",
    "tests/elsewhere/test_c.py": "",
}
LISTED = {"kfit/room/b.py": "room/test_all.py"}
ALL = {"room/test_all.py": "all of it"}


@pytest.mark.parametrize(
    ("files", "tested_by", "whole", "problem"),
    [
        ({}, LISTED, ALL, None),
        ({}, {"kfit/room/b.py": "room/test_all.py: Thing"}, ALL, "does not name 'Thing'"),
        ({}, {"kfit/room/b.py": "room/test_all.py: word"}, ALL, "does not name 'word'"),
        ({}, {}, ALL, "kfit/room/b.py: write tests/room/test_b.py"),
        ({}, {"kfit/room/b.py": "it is plain"}, ALL, "so that a reason is not enough"),
        ({}, {"kfit/room/b.py": "room/test_c.py"}, ALL, "there is no tests/room/test_c.py"),
        ({}, {"kfit/room/b.py": "test_a.py"}, ALL, "tests/test_a.py does not import it"),
        ({}, {**LISTED, "kfit/gone.py": "test_a.py"}, ALL, "kfit/gone.py: is gone"),
        ({}, {**LISTED, "kfit/a.py": "test_a.py"}, ALL, "kfit/a.py: has tests of its own now"),
        ({}, LISTED, {}, "tests/room/test_all.py: name it for the module"),
        ({}, LISTED, {**ALL, "test_gone.py": "gone"}, "tests/test_gone.py: is gone"),
        ({}, LISTED, {**ALL, "test_a.py": "all"}, "tests/test_a.py: is that of kfit/a.py"),
        ({"kfit/room/__init__.py": "def __getattr__(name): ..."}, LISTED, ALL, None),
        ({"kfit/room/__init__.py": "def f(): ..."}, LISTED, ALL, "kfit/room/__init__.py: write"),
        ({"callbacks/d.py": ""}, LISTED, ALL, "callbacks/d.py: write tests/callbacks/test_d.py"),
        ({"callbacks/d.py": ""}, {**LISTED, "callbacks/d.py": "it is plain"}, ALL, None),
    ],
)
def test_what_is_missing_or_stale_is_found(
    tmp_path: Path,
    files: dict[str, str],
    tested_by: dict[str, str],
    whole: dict[str, str],
    problem: str | None,
) -> None:
    for name, text in {**FILES, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    problems = problems_of(tmp_path, tested_by, whole)
    assert len(problems) == (problem is not None), problems
    assert problem is None or problem in problems[0]
