"""Python imports this before a program, which then knows version 1 only, like all processes that it starts."""

from prime_protocol import constants

constants.PROTOCOL_VERSION = 1
