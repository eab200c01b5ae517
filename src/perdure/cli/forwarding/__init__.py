"""Open a session, else ask the process that has it open (K12, CM-15).

May touch: `opening`, an open harness, the control address and its HTTP API.
May not touch: words on the terminal; what a request means is the API's.
"""
