"""What a slice keeps between runs: its lease, plan, fragments, ledger, commits.

In: finished rows and plans. Out: what is finished, missing, published. Never here: inference, or a change to
what is published (`publish`).
"""
