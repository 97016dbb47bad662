"""The published schemas, as a reader of records uses them."""
import json

import jsonschema

from cli_paths import ROOT

FOLDER = ROOT / "docs" / "schema"


def schema_of(name):
    return json.loads((FOLDER / f"{name}.schema.json").read_text())


def validate(record, name=None):
    """Held to the schema it says it is of, or to one that is named."""
    name = name or record["schema"].removeprefix("greenfast.").removesuffix("/1")
    jsonschema.Draft202012Validator(schema_of(name)).validate(record)
    if "samples" in record:
        validate(record["samples"])
