"""The vLLM engine: vLLM schedules and computes, our worker extension draws the tokens and records the hidden states.

engine and worker import vllm; records must not, so that its tests run without vLLM.
"""
