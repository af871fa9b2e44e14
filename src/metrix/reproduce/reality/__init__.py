"""`metrix reproduce reality-check`: what losses and mixup are worth when all are tuned equally.

After Musgrave, Belongie and Lim, "A Metric Learning Reality Check" (2020). Every method gets the same number of trials
of `metrix tune` on the same folds of the training classes, on each of several datasets, and the test classes are
measured once, at the end. The datasets then rank the methods.

    compared.py  methods and datasets              plan.py      what was asked for and is trained
    planning.py  times, and the trials that fit    studies.py   a study for each dataset, to its end
    outcome.py   what is kept of each              summary.py   ranks, gains, cost over datasets
    answer.py    what follows, in sentences        blocks.py    tables and figures of the page
    page.py      the page, and all runs as CSV
"""
