"""Print the settings that a run would have, and their sources: `muster config --on CLUSTER`."""

from configs import cli
from configs.settings.launch import LaunchConfig, ProgramConfig
from configs.settings.remote import DEFAULT_TIME
from launch.programs.command_line import OF_LAUNCH, of_class, split_program
from muster import errors, json_output
from muster.command import LOGIN, own_arguments

CLASSES = (*OF_LAUNCH, ProgramConfig)
HIDDEN = ("env", "json")  # --env may have a secret; --json is a flag of this command


def main() -> int:
    flags, _ = split_program(own_arguments())
    about = "Show which settings a run would have, and where each comes from."
    example = "muster config --on CLUSTER"
    settings = cli.parse(CLASSES, flags, prog="muster config", description=about, example=example)
    if of_class(LaunchConfig, settings).json:
        json_output.begin()
    values = {name: value for each in settings for name, value in vars(each).items()}
    given = {each.name: each for each in cli.given(CLASSES, flags, on_cluster=True)}
    values |= {name: given[name].text for name in LOGIN if name in given}
    sources = {
        name: setting.where.rstrip(": ") or "the command line" for name, setting in given.items()
    }
    values["time"] = values["time"] or DEFAULT_TIME
    printed = {
        name: {
            "value": None if value is None else cli.text_of(name, value),
            "from": sources.get(name, "default"),
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


if __name__ == "__main__":
    errors.run(main)
