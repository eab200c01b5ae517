"""The operating system's random numbers."""

import secrets


class SystemRandomness:
    """Answer unguessable text: session ids, nonces, handles, secrets (K42)."""

    def token(self, nbytes: int) -> str:
        """Answer `nbytes` random bytes as lower-case hex, two digits a byte."""
        return secrets.token_hex(nbytes)
