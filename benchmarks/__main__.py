"""Runs benchmarks one after the other: those that are named, or the first five without a name.

Each benchmark is a module with `main() -> bool`, which prints a table and returns whether the goals were
reached. A missed goal is a result, not an error: it changes the exit status only with `--strict`.
"""

import argparse
import importlib
import sys

DEFAULT = ("signals", "queue_throughput", "upload_to_ready", "api_memory", "redis_memory")
BY_NAME = (
    "campaign", "extraction", "first_paint", "hot_path", "large_tenant", "manifest_polling", "neighbours",
    "overload", "pages", "proof", "rebuild", "sdk_cache", "warm_up", "worker_start",
)  # fmt: skip


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Runs benchmarks and prints their tables, which benchmarks/README.md explains.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(DEFAULT)} (which run if no name is given), or {', '.join(BY_NAME)}",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal was missed")
    parsed = parser.parse_args(arguments)
    unknown = [name for name in parsed.names if name not in DEFAULT + BY_NAME]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(map(repr, unknown))}; --help names them all")
    return parsed


def main(arguments: list[str]) -> int:
    wanted = parse_arguments(arguments)
    missed = []
    for name in wanted.names or DEFAULT:
        print(f"\n## {name}\n", flush=True)
        if not importlib.import_module(f"benchmarks.{name}").main():
            missed.append(name)
    return int(bool(missed) and wanted.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
