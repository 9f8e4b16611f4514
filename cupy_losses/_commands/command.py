"""What all subcommands have in common."""

from __future__ import annotations

import click


class Command(click.Command):
    """A subcommand to which no option is given twice, unless it takes several values.

    click itself takes the last value, and leaves out the others.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        *_, given = self.make_parser(ctx).parse_args(args=[*args])
        for option in given:
            takes_one = isinstance(option, click.Option) and not (option.multiple or option.is_flag)
            if takes_one and given.count(option) > 1:
                raise click.UsageError(f"the option {option.opts[0]} is given twice", ctx)
        return super().parse_args(ctx, args)
