"""Which settings a run would have, and from where: `muster config --on cluster`."""

from configs import cli
from configs.settings.launch import LaunchConfig, ProgramConfig
from configs.settings.remote import DEFAULT_TIME
from launch.programs.command_line import OF_LAUNCH, of_class, split
from muster import errors, json_output
from muster.command import LOGIN, own_arguments

CLASSES = (*OF_LAUNCH, ProgramConfig)
HIDDEN = ("env", "json")  # a secret may be in it; the flag of this command


def main() -> int:
    flags, _ = split(own_arguments())
    about = "Show which settings a run would have, and where each comes from."
    example = "muster config --on CLUSTER"
    made = cli.parse(CLASSES, flags, prog="muster config", description=about, example=example)
    if of_class(LaunchConfig, made).json:
        json_output.begin()
    values = {name: value for one in made for name, value in vars(one).items()}
    given = {one.name: one for one in cli.given(CLASSES, flags, on_cluster=True)}
    values |= {name: given[name].text for name in LOGIN if name in given}
    sources = {name: one.where.rstrip(": ") or "the command line" for name, one in given.items()}
    values["time"] = values["time"] or DEFAULT_TIME
    shown = {
        name: {
            "value": None if value is None else cli.text_of(name, value),
            "from": sources.get(name, "default"),
        }
        for name, value in values.items()
        if name not in HIDDEN
    }
    json_output.emit("settings", settings=shown)
    for name, one in shown.items():
        if one["from"] != "default" or one["value"]:
            text = ("off", "on")[values[name]] if isinstance(values[name], bool) else one["value"]
            print(f"{name}: {text}  ({one['from']})")
    return 0


if __name__ == "__main__":
    errors.run(main)
