"""`iddpm recipes`."""

from dataclasses import dataclass

from iddpm.cli.console import parse, print_json

__all__ = ["Arguments", "run"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """List the runs that have a name: the paper's, the demo's, a tiny one for tests."""

    json: bool = False
    """Print one JSON object: recipes, a list of name, summary, image_size, timesteps, train_steps, batch_size."""


def run(argv: list[str]) -> None:
    """Parse and run."""
    arguments = parse(Arguments, argv, prog="recipes")
    from iddpm.commands.show import list_recipes

    rows = list_recipes()
    if arguments.json:
        print_json({"recipes": rows})
        return
    width = max(len(row["name"]) for row in rows)
    print(f"{'recipe':<{width}}  size     T  {'steps':>9}  batch  what")
    for row in rows:
        print(
            f"{row['name']:<{width}}  {row['image_size']:>4}  {row['timesteps']:>4}  {row['train_steps']:>9,}  "
            f"{row['batch_size']:>5}  {row['summary']}"
        )
