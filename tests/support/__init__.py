"""What tests share: processes under test, stores, servers and waits."""
