"""The picture of the front page: weekly CO₂ at Mauna Loa, its trend and its season, and the two years that follow.

    python examples/co2_forecast.py

The data come with statsmodels. Nothing is fitted beforehand: each week is read once, and the sizes of the noises are
learned on the way.
"""

from pathlib import Path

from statsmodels.datasets import co2

import backstream as bs


def main(picture: Path, weeks: int = 1000) -> None:
    series = co2.load().data["co2"][-weeks:]
    model = bs.structural(
        level=0.1,
        trend=0.005,
        seasonal=365.25 / 7,
        harmonics=3,
        seasonal_scale=0.02,
        noise=0.3,
        initial_level=series.dropna().iloc[0],
        initial_scale=5.0,
    )
    result = bs.learn(model, series, settings=bs.Settings(learn_model=True))
    print(result)
    print(result.parameters().to_pandas().groupby("name").last())
    result.plot(horizon=104, last=260, path=picture)


if __name__ == "__main__":
    main(Path("co2_forecast.png"))
