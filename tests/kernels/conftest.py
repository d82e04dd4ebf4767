from tests.torch_threads import one_thread, torch_threads  # noqa: F401  fixtures
