"""The part of a program's text that trains, evaluates and predicts, and records what came of it."""

from typing import Any

from tests.programs.generated.expression import compile_call, expression
from tests.programs.generated.place import Place


def action_lines(program: dict[str, Any], place: Place, number: int) -> list[str]:
    """Lines that take one of the program's actions and record what came of it."""
    action = dict(program["actions"][number])
    do = action.pop("do")
    name = f"{number} {do}"
    if do == "fit":
        return _fit(program, place, number, action)
    # Where each example has a row of a layer's state, every batch has as many.
    rows = program["data"]["batch_size"] if program["model"].get("stateful") else None
    own = "own = os.path.join(folder, os.environ.get('KFIT_TEST_TASK', '') + "
    lines = {
        "evaluate": [
            f"result = trainer.evaluate(*held_out[:2], batch_size={rows or 4}, "
            "sample_weight=(*held_out, None)[2], verbose=0, "
            f"return_dict={action.get('return_dict', True)}, callbacks=[hooks])",
            f"recorder.note({name!r}, result)",
        ],
        "predict": [
            f"result = trainer.predict(x, batch_size={rows or 5}, verbose=0, callbacks=[hooks])",
            f"recorder.note({name!r}, result)",
        ],
        "compile": [compile_call(action), f"recorder.note({name!r}, None)"],
        "set_rate": [f"model.optimizer.learning_rate = {action.get('rate')}"],
        "freeze": [
            f"body[{action.get('layer')}].trainable = {action.get('trainable')}",
            compile_call(program["compile"]),
        ],
        "train_on_batch": [
            "result = trainer.train_on_batch("
            f"*keras.tree.map_structure(lambda a: a[:{rows or 7}], arrays))",
            f"recorder.note({name!r}, result)",
            f"recorder.state({name!r}, model)",
        ],
        "set_weights": [
            "model.set_weights([0.9 * weight if weight.dtype.kind == 'f' else weight "
            "for weight in model.get_weights()])"
        ],
        "load_weights": [
            own + "'w.weights.h5')",
            "model.save_weights(own)",
            "model.set_weights([weight + weight.dtype.type(1) for weight in model.get_weights()])",
            "model.load_weights(own)",
            f"recorder.state({name!r}, model)",
        ],
        "save_load": [
            own + "'model.keras')",
            "model.save(own)",
            "model = keras.models.load_model(own)",
            "trainer = kfit.Trainer(model, strategy, seed=5) if strategy else model",
            f"recorder.state({name!r}, model)",
        ],
    }[do]
    if do == "save_load" and (program.get("door") == "function" or not place.strategy):
        lines[3] = "trainer = model"
    return lines


def _fit(program: dict[str, Any], place: Place, number: int, action: dict[str, Any]) -> list[str]:
    data, name = program["data"], f"{number} fit"
    callbacks = [expression(each) for each in action.pop("callbacks", [])]
    arguments = {k: expression(v) for k, v in action.items()}
    positional = ["data"]
    if data["kind"] == "arrays":
        positional = ["x", "y"]
        arguments["batch_size"] = str(data["batch_size"])
        arguments.setdefault("shuffle", "False")
        if data.get("weights"):
            arguments["sample_weight"] = "w"
    elif data["kind"] == "py_dataset":
        arguments["shuffle"] = "False"
    if place.strategy and place.save_freq is not None:
        backup = "backup" if place.one_directory else f"backup{number}"
        callbacks.append(
            f"kfit.callbacks.BackupAndRestore(os.path.join(folder, {backup!r}), "
            f"save_freq={place.save_freq!r})"
        )
    arguments["verbose"] = "0"
    arguments["callbacks"] = "callbacks"
    lines = ["callbacks = ["]
    lines += [f"    {each}," for each in [*callbacks, "hooks"]]
    lines.append("]")
    method = "trainer.fit("
    if place.strategy and program.get("door") == "function":
        method = "kfit.fit(model, "
        arguments["strategy"] = "strategy"
    given = [*positional, *(f"{k}={v}" for k, v in arguments.items())]
    lines.append(f"history = {method}{', '.join(given)})")
    lines.append(f"recorder.note({name!r}, [history.epoch, history.history])")
    lines.append(f"recorder.state({name!r}, model)")
    if any("CSVLogger" in each for each in callbacks):
        lines.append(f"recorder.text({name + ' log'!r}, os.path.join(folder, 'log{number}.csv'))")
    if any("ModelCheckpoint" in each for each in callbacks):
        lines.append(
            f"recorder.text({name + ' files'!r}, os.path.join(folder, 'checkpoints{number}'))"
        )
    return lines
