"""The run report: plain data in, one self-contained HTML page and PNG grids out."""
