"""`metrix tune`: the settings of some methods, searched on folds of the training classes with equal numbers of trials.

A study is a folder. Each method (a loss, clean or with a mixing method) has a space of settings, which Optuna searches.
A trial trains one setting on all but a fold of the training classes and measures it on that fold, fold after fold,
until it falls behind. The best setting of each method is then trained on all training classes with several seeds and
measured on the test classes, once.

    methods.py     what is compared                    spaces.py      which settings are searched
    study.py       the folder, its storage, its locks  trials.py      one setting, from fold to fold
    budget.py      how many trials fit into a time     finals.py      the winners on the test classes
    starting.py    start, resume                       running.py     work on it, also with others
    conclusion.py  what follows, in sentences          result.py      all that is shown
"""
