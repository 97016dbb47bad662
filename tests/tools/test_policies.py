"""What a build without GREENFAST_EXPERIMENTAL cannot see of the policies: rows of kernels that it lacks."""
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def test_rows_of_experimental_kernels_name_one_that_is_there():
    listed = (ROOT / "src" / "dispatch" / "variants.def").read_text()
    hidden = set(re.findall(r'\.id = "([^"]+)"', "".join(re.findall(r"#if GREENFAST_EXPERIMENTAL\n(.*?)#endif", listed, re.S))))
    rows = [row for row in tomllib.loads((ROOT / "policies" / "predictions.toml").read_text())["change"] if row.get("experimental")]
    assert {row["candidate"] for row in rows} <= hidden, "a row that says experimental = true names a variant that stands in no #if"
