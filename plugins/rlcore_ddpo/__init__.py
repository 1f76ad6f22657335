"""DDPO: denoising diffusion policy optimisation, which trains an image pipeline on a reward of its images.

An image is one trajectory of S actions, the DDIM steps that turn noise x_T into the latents x_0. With the UNet's
prediction under guidance s, eps = u + s (c - u), and t' = t - T // S the timestep after t:

    x0    = (x_t - sqrt(1 - abar_t) eps) / sqrt(abar_t)                    clipped if the scheduler clips   denoising.py
    sigma = eta sqrt((1 - abar_t') / (1 - abar_t) (1 - abar_t / abar_t'))
    mu    = sqrt(abar_t') x0 + sqrt(1 - abar_t' - sigma^2) eps
    log p = mean over the latents of -(x_t' - mu)^2 / (2 sigma^2) - ln sigma - ln(2 pi) / 2
    A     = clip((R - mean R) / (std R + 1e-6), -a, a)            of the round or the prompt                     loss.py
    rho   = exp(log p - log p_old)
    L     = mean over images and steps of max(-A rho, -A clip(rho, 1 - eps, 1 + eps))                         loss.py

For v- and sample-prediction, x0 and eps follow from the same two equations. The log-prob is a mean, not a sum, so that
eps belongs to a size of the latents. A step with sigma = 0 is no random action: it is in no loss.

Black et al. 2023, arXiv:2305.13301; DDIM: Song et al. 2020, arXiv:2010.02502, eqs. 12 and 16.
"""
