"""`python -m tests.deploy.contained_api`: the API as its image runs it."""

from tests.deploy.contained import become

if __name__ == "__main__":
    become("services.registry_api")
