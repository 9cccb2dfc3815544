"""TensorFlow's tutorial `tutorials/distribute/multi_worker_with_keras`, with its own calls.

It knows nothing of kfit. It differs from the page in its few steps, in `.keras`, which Keras 3 asks
of a path, and in the order: what the chief has saved is loaded after a training that all workers
take part in, so that no worker looks for it too early.
"""

import json
import os

import mnist_setup
import tensorflow as tf

per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_setup.mnist_dataset(global_batch_size)
single_worker_dataset = mnist_setup.mnist_dataset(per_worker_batch_size)

with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()

first = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=10)


def _is_chief(task_type, task_id):
    return (task_type == "worker" and task_id == 0) or task_type is None


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, os.path.basename(filepath))


task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
folder = os.path.join(os.getcwd(), "saved")
tf.io.gfile.makedirs(folder)

model_path = os.path.join(folder, "keras-model.keras")
write_model_path = write_filepath(model_path, task_type, task_id)
multi_worker_model.save(write_model_path)
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))

checkpoint_dir = os.path.join(folder, "ckpt")
checkpoint = tf.train.Checkpoint(model=multi_worker_model)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id)
manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
manager.save()
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(write_checkpoint_dir)

callbacks = [tf.keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=3)]
with strategy.scope():
    backed_up_model = mnist_setup.build_and_compile_cnn_model()
second = backed_up_model.fit(
    multi_worker_dataset, epochs=3, steps_per_epoch=10, callbacks=callbacks
)

loaded_model = tf.keras.models.load_model(model_path)
loaded = loaded_model.fit(single_worker_dataset, epochs=2, steps_per_epoch=5)

checkpoint.restore(tf.train.latest_checkpoint(checkpoint_dir))
restored = multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=5)

options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
dataset_no_auto_shard = multi_worker_dataset.with_options(options)

own_parts = backed_up_model.fit(dataset_no_auto_shard, epochs=1, steps_per_epoch=5)

histories = {"first": first, "second": second, "loaded": loaded, "restored": restored}
losses = {name: history.history["loss"] for name, history in histories.items()}
losses["own parts"] = own_parts.history["loss"]
print("numbers", json.dumps({"task": task_id, "losses": losses}), flush=True)
