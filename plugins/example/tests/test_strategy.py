from dflash.testing import strategy_contract

from dflash_strategy_example.strategy import Example

# One test for each rule of the contract and each of these settings.
test_contract = strategy_contract(Example(), Example(pool=7))
