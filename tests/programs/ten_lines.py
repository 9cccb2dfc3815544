"""The program at the top of the README, told how far it has come; prints what it ends with.

Usage: ten_lines.py README FOLDER SAVE_FREQ

SAVE_FREQ takes the place of the program's own. Writes a line with the step before and after each
execution into FOLDER/steps, once it is done.
"""

import hashlib
import os
import re
import sys
from typing import Any

from kfit.steps import execution as executions

readme, folder, save_freq = sys.argv[1:]
os.chdir(folder)
with open(readme, encoding="utf-8") as file:
    text = file.read()
program = re.search(r"```python\n(import kfit, keras\n\n.*?)```", text, re.DOTALL)
assert program is not None
lines = re.sub(r'save_freq="\w+"', f'save_freq="{save_freq}"', program[1])
assert f'save_freq="{save_freq}"' in lines
original = executions.Execution.run


def run(self: Any, *args: Any, **kwargs: Any) -> Any:
    before = int(self._model.optimizer.iterations.numpy())
    done = original(self, *args, **kwargs)
    with open("steps", "a") as file:
        file.write(f"{before} {int(self._model.optimizer.iterations.numpy())}\n")
    return done


executions.Execution.run = run  # type: ignore[method-assign]
# Without a seed the program begins with other weights each time.
names: dict[str, Any] = {}
exec("import keras; keras.utils.set_random_seed(1)", names)
exec(lines, names)
model = names["model"]
values = [v.numpy().tobytes() for v in [*model.variables, *model.optimizer.variables]]
content = b"".join(values) + repr(model.history.history).encode()
print(f"DIGEST {hashlib.sha256(content).hexdigest()}", flush=True)
