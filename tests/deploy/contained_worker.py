"""`python -m tests.deploy.contained_worker`: the light worker as an image would run it."""

from tests.deploy.contained import become

if __name__ == "__main__":
    become("tests.light_worker")
