"""Print the settings that a run would have, and their sources: `muster config --on CLUSTER`."""

from configs import cli
from configs.raw import RawSetting
from configs.settings.launch import ProgramConfig
from configs.settings.remote import DEFAULT_TIME
from launch.programs.command_line import LAUNCH_CLASSES, split_program
from muster import errors, json_output
from muster.command import LOGIN, own_arguments
from muster.errors import refuse

CLASSES = (*LAUNCH_CLASSES, ProgramConfig)
HIDDEN = ("env", "json")  # --env may contain secrets; --json is a flag of this command


def main() -> int:
    flags, _ = split_program(own_arguments())
    about = "Show the settings that a run would have, and where each comes from."
    example = "muster config --on CLUSTER"
    parsed = cli.parsed(CLASSES, flags, prog="muster config", description=about, example=example)
    refuse(parsed.instances(CLASSES)[1])
    if parsed.values["json"]:
        json_output.begin()
    origin = parsed.origin
    values = {**parsed.values, "time": parsed.values["time"] or DEFAULT_TIME}
    values |= {name: origin[name].text for name in LOGIN if name in origin}
    printed = {
        name: {
            "value": None if value is None else cli.text_of(name, value),
            "from": _source(origin[name]) if name in origin else "default",
        }
        for name, value in values.items()
        if name not in HIDDEN
    }
    json_output.emit("settings", settings=printed)
    for name, setting in printed.items():
        value = setting["value"]
        if setting["from"] != "default" or value:
            text = ("off", "on")[values[name]] if isinstance(values[name], bool) else value
            print(f"{name}: {text}  ({setting['from']})")
    return 0


def _source(given: RawSetting) -> str:
    return given.where.rstrip(": ") or "the command line"


if __name__ == "__main__":
    errors.run(main)
