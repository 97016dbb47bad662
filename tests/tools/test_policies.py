"""What a build without GREENFAST_EXPERIMENTAL cannot see of the policies: rows of kernels that it lacks."""
import json
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def test_rows_of_experimental_kernels_name_one_that_is_there():
    listed = (ROOT / "src" / "dispatch" / "variants.def").read_text()
    hidden = set(re.findall(r'\.id = "([^"]+)"', "".join(re.findall(r"#if GREENFAST_EXPERIMENTAL\n(.*?)#endif", listed, re.S))))
    rows = [row for row in tomllib.loads((ROOT / "policies" / "predictions.toml").read_text())["change"] if row.get("experimental")]
    assert {row["candidate"] for row in rows} <= hidden, "a row that says experimental = true names a variant that stands in no #if"


def test_a_step_whose_profile_is_recorded_has_directions_to_hold_it_to():
    rows = tomllib.loads((ROOT / "policies" / "predictions.toml").read_text())["change"]
    directions = {(row["baseline"], row["candidate"]): {key for key in row if row[key] in ("up", "down", "equal")} for row in rows}
    profiled = set()
    for file in sorted((ROOT / "evidence").rglob("*.json")):
        record = json.loads(file.read_text())
        if isinstance(record, dict) and record.get("schema") == "greenfast.profile/1" and len(record["sides"]) == 2:
            profiled.add(tuple(side["variant"] for side in record["sides"]))
    assert profiled & set(directions), "no recorded profile is of a step: this test would hold nothing"
    lacking = [f"{candidate} after {baseline}" for baseline, candidate in sorted(profiled & set(directions)) if not directions[baseline, candidate]]
    assert not lacking, f"profiled, and policies/predictions.toml says up, down or equal of no metric: {lacking}"
