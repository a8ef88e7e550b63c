"""``python -m pipelines.cli``: the ``mutirao`` command of this very interpreter."""

from pipelines.cli.main import main

main(prog_name="mutirao")
