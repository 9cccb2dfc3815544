"""``fit`` for Keras 3 on any ``tf.distribute`` strategy.

``import kfit`` imports neither TensorFlow nor Keras, since each public name of this module is
imported when it is first used. So environment variables (threads, devices) can still be set after
``import kfit``.

``import kfit`` does not join a cluster: it opens no socket and waits for no other task. If a
program is started by ``kfit run`` or ``kfit.launch``, its process joins the cluster before the
program begins. A program that is started in another way must call ``kfit.join_cluster()`` before it
uses TensorFlow.

In a notebook, ``import kfit`` leaves out the messages that TensorFlow prints when it is imported,
and which need no action.

``dir(kfit)`` lists the public names. ``help(kfit)`` also lists every folder and file of the
package. Of these, only ``callbacks``, ``checkpoint``, ``datasets``, ``distribute`` and ``saving``
are public; the others may change in any version.
"""

from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from kfit import callbacks as callbacks
    from kfit import checkpoint as checkpoint
    from kfit import datasets as datasets
    from kfit import distribute as distribute
    from kfit import saving as saving
    from kfit.distribute.joining import join_cluster as join_cluster
    from kfit.evaluation import BestExporter as BestExporter
    from kfit.evaluation import EvalSpec as EvalSpec
    from kfit.evaluation import Exporter as Exporter
    from kfit.evaluation import TrainingIdleError as TrainingIdleError
    from kfit.evaluation import TrainSpec as TrainSpec
    from kfit.evaluation import train_and_evaluate as train_and_evaluate
    from kfit.model import Model as Model
    from kfit.model import Sequential as Sequential
    from kfit.model import evaluate as evaluate
    from kfit.model import fit as fit
    from kfit.model import install as install
    from kfit.model import predict as predict
    from kfit.model import uninstall as uninstall
    from kfit.plots.plot_history import plot_history as plot_history
    from kfit.remote.launch import launch as launch
    from kfit.remote.launch_error import LaunchError as LaunchError
    from kfit.report import Report as Report
    from kfit.trainer import Trainer as Trainer
else:
    import sys

    __getattr__, __dir__, __all__ = lazy_names(
        globals(),
        {
            "kfit.distribute.joining": ["join_cluster"],
            "kfit.evaluation": [
                "BestExporter",
                "EvalSpec",
                "Exporter",
                "TrainSpec",
                "TrainingIdleError",
                "train_and_evaluate",
            ],
            "kfit.model": [
                "Model",
                "Sequential",
                "evaluate",
                "fit",
                "install",
                "predict",
                "uninstall",
            ],
            "kfit.plots.plot_history": ["plot_history"],
            "kfit.remote.launch": ["launch"],
            "kfit.remote.launch_error": ["LaunchError"],
            "kfit.report": ["Report"],
            "kfit.trainer": ["Trainer"],
        },
        submodules=["callbacks", "checkpoint", "datasets", "distribute", "saving"],
        others="kfit.Trainer",
    )
    if "ipykernel" in sys.modules:
        from kfit.supervisor.quiet_notebook import leave_out_start_up_messages

        leave_out_start_up_messages(sys.stderr)
        del leave_out_start_up_messages
    del sys
