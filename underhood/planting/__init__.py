"""Planted circuits: networks with a known attention inside, and grades for methods that find it."""

from underhood.planting.folders import plant_folder
from underhood.planting.grading import grade_folder
from underhood.planting.planting import Planted, Planting, plant_network
