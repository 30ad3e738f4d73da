"""Training a drafter: the step of one window, its optimizer, and the run that feeds them."""
