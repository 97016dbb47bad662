"""Where the repository and the built command are."""
import os
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("GREENFAST_BUILD", ROOT / "build"))
GREENFAST = BUILD / "bin" / "greenfast"
