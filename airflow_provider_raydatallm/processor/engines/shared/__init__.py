"""vLLM engines that outlive a slice, as Ray Serve applications.

In come batches of token ids from many jobs, out go answers, with the slots shared fairly. An engine in use is
never stopped without force.
"""
