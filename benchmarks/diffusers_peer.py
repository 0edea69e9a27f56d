"""The peer's side: the same net, objective and chain, as a user of diffusers writes them after its training example."""

import math

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import EMAModel

__all__ = ["Peer"]


class Peer:
    """UNet2DModel with DDPMScheduler, torch's AdamW and EMAModel, each with its defaults."""

    def __init__(self, *, batch_size: int, timesteps: int):
        torch.manual_seed(0)
        self.batch_size = batch_size
        self.net = UNet2DModel(
            sample_size=32,
            in_channels=3,
            out_channels=6,
            layers_per_block=3,
            block_out_channels=(64, 128, 128, 128),
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=32,
            resnet_time_scale_shift="scale_shift",
        )
        self.scheduler = DDPMScheduler(
            num_train_timesteps=timesteps, beta_schedule="squaredcos_cap_v2", variance_type="learned_range"
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.ema = EMAModel(self.net.parameters(), decay=0.9999, use_ema_warmup=True)
        self.images = torch.rand(batch_size, 3, 32, 32) * 2 - 1  # the user's transform has done this
        self._make_tables()

    def train(self) -> None:
        """One training step."""
        noise = torch.randn_like(self.images)
        t = torch.randint(0, self.scheduler.config.num_train_timesteps, (self.batch_size,))
        noisy = self.scheduler.add_noise(self.images, noise, t)
        eps, v = self.net(noisy, t, return_dict=False)[0].chunk(2, dim=1)
        bound = self._bound_term(noisy, t, eps.detach(), v)
        loss = F.mse_loss(eps, noise) + self.scheduler.config.num_train_timesteps / 1000 * bound.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.step(self.net.parameters())

    @torch.no_grad()
    def sampling(self, steps: int):
        """An iterator over DDPM sampling: each `next` is one step, as in DDPMPipeline."""
        image = torch.randn_like(self.images)
        self.scheduler.set_timesteps(steps)
        for t in self.scheduler.timesteps:
            with torch.no_grad():
                output = self.net(image, t, return_dict=False)[0]
                image = self.scheduler.step(output, t, image, return_dict=False)[0]
            yield image

    def _make_tables(self) -> None:
        alpha_bar = self.scheduler.alphas_cumprod.double()
        before = torch.cat([torch.ones(1, dtype=torch.float64), alpha_bar[:-1]])
        beta = 1 - alpha_bar / before
        variance = beta * (1 - before) / (1 - alpha_bar)
        variance[0] = variance[1]
        self.log_beta, self.log_variance = beta.log().float(), variance.log().float()
        self.from_x0 = (beta * before.sqrt() / (1 - alpha_bar)).float()
        self.from_noisy = ((1 - before) * (alpha_bar / before).sqrt() / (1 - alpha_bar)).float()
        self.signal, self.spread = alpha_bar.sqrt().float(), (1 - alpha_bar).sqrt().float()

    def _bound_term(self, noisy, t, eps, v):
        """What the variance is trained with: the KL, or at index 0 the decoder's negative log-likelihood, in bits/dim."""

        def at(table):
            return table[t][:, None, None, None]

        share = (v + 1) / 2
        log_variance = share * at(self.log_beta) + (1 - share) * at(self.log_variance)
        x0 = (noisy - at(self.spread) * eps) / at(self.signal)
        mean = at(self.from_x0) * x0 + at(self.from_noisy) * noisy
        true_mean = at(self.from_x0) * self.images + at(self.from_noisy) * noisy
        kl = 0.5 * (
            log_variance
            - at(self.log_variance)
            + (at(self.log_variance) - log_variance).exp()
            + (true_mean - mean) ** 2 * (-log_variance).exp()
            - 1
        )
        centred, inverse_std = self.images - mean, (-0.5 * log_variance).exp()
        upper, lower = _normal_cdf((centred + 1 / 255) * inverse_std), _normal_cdf((centred - 1 / 255) * inverse_std)
        inner = (upper - lower).clamp(min=1e-12).log()
        edges = torch.where(self.images > 0.999, (1 - lower).clamp(min=1e-12).log(), inner)
        likelihood = torch.where(self.images < -0.999, upper.clamp(min=1e-12).log(), edges)
        return torch.where((t == 0)[:, None, None, None], -likelihood, kl).mean((1, 2, 3)) / math.log(2)


def _normal_cdf(z):
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
