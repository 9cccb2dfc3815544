"""Trains by Ray Train's TensorflowTrainer on two workers, and prints what Ray was told."""

import json
import sys
from typing import Any


def train(config: dict[str, Any]) -> None:
    import keras
    import numpy as np
    from ray.train.tensorflow.keras import ReportCheckpointCallback

    if config["by_kfit"]:
        import kfit

        kfit.join_cluster()
        kfit.install()

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(x, x.sum(axis=1), callbacks=[ReportCheckpointCallback()], **fit)


def main() -> None:
    """Trains on one worker by Keras and on two by kfit."""
    import keras
    import numpy as np
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    ray.init(num_cpus=4, include_dashboard=False)
    for workers in (1, 2):
        result = TensorflowTrainer(
            train,
            train_loop_config={"by_kfit": workers == 2},
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=sys.argv[1], name=f"workers-{workers}"),
        ).fit()
        with result.checkpoint.as_directory() as folder:
            model = keras.models.load_model(f"{folder}/model.keras")
        weight = float(np.abs(model.get_weights()[0]).sum())
        print("numbers", json.dumps({"loss": result.metrics["loss"], "weight": weight}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
