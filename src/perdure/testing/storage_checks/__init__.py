"""The checks of the storage suite: one small async function a clause, by subject."""
