"""What people look at: measures of runs, comparisons, tables and plots."""
