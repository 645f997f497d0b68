"""Each idea that this system was built from, on and off in the same process; `python -m benchmarks.ablations`.

The results file has, under `ablations`, by letter:

    idea, how       what is compared, in words
    published       figures of others, as data: who, what, value, unit, source
    cases           a list, in each:
        case, given     its name, and what the variants get
        ours, rounds    which variant is what this system does, and how often each had its turn
        variants        by name: largest_difference from ours, and figures by name, each with its unit:
                        {unit: count, value}, or {unit: seconds | count/second, median, lower_quartile,
                        upper_quartile, rounds: one number a round}. `time` is always there: seconds a call
        against         by name of each other variant, then by figure: how many times less of it ours takes, round by
                        round: {ratio, lower_quartile, upper_quartile, verdict: gains | loses | nothing | unclear}
"""
