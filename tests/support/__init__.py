"""Helpers of the tests: processes under test, stores, servers and waits."""
