"""Runs every benchmark, one after the other. `python -m benchmarks [name …]` runs some of them.

Each benchmark is a module with `main() -> bool`, which prints a table and returns whether the goals were
reached. A missed goal is a result, not an error: it changes the exit status only with `--strict`.
"""

import importlib
import sys

NAMES = ("signals", "queue_throughput", "upload_to_ready", "api_memory", "redis_memory")


def main(arguments: list[str]) -> int:
    wanted = [name for name in arguments if not name.startswith("-")] or NAMES
    missed = []
    for name in wanted:
        print(f"\n## {name}\n", flush=True)
        if not importlib.import_module(f"benchmarks.{name}").main():
            missed.append(name)
    return int(bool(missed) and "--strict" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
