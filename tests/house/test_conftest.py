async def test_async_tests_run_without_a_marker() -> None:
    pass
