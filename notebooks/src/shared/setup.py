#@title Setup: on Colab, installs what the notebook needs. Elsewhere it does nothing.
import importlib.util
import subprocess
import sys

needed = {{needs}}
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing and "google.colab" in sys.modules:
    # Without dependencies: Colab's own torch, numpy and ipywidgets stay as they are.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    if subprocess.run([*pip, *(needed[name] for name in missing)]).returncode:
        raise RuntimeError(
            f"pip could not install {', '.join(missing)}; the lines above say why. Check that "
            "this runtime has internet access, then run this cell again."
        )
    importlib.invalidate_caches()
    if "rehearsal" in missing:
        print("The coach is installed. It stays as long as this runtime, and so does your history.")
        print("In the text, links to other notebooks don't work on Colab. You find all of them at")
        print("{{all_on_colab}}")
elif missing:
    raise ModuleNotFoundError(
        f"This kernel is missing {', '.join(missing)}. Run `make lab` in a clone of "
        "{{repository}}, and open this notebook there."
    )
