//! Current resources of this pxed for the boot policy: loaders, images, and the state of discovery.
//!
//! In memory only; replaced as a whole when the configuration is reloaded.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::boot_policy::{ImageName, ImageState, Platform, State, Transport};
use crate::config::Config;
use crate::images::Images;
use crate::netboot::loaders::Loaders;

/// The policy's state.
pub struct Present {
    /// The loaders.
    pub loaders: Arc<ArcSwap<Loaders>>,
    /// The images.
    pub images: Images,
    settings: ArcSwap<Settings>,
}

struct Settings {
    default_image: Option<String>,
    discovery_image: Option<String>,
}

impl Settings {
    fn of(config: &Config) -> Self {
        let discovery_image = config.discovery_image.clone().filter(|_| config.dhcp.discovery);
        Self { default_image: config.default_image.clone(), discovery_image }
    }
}

impl Present {
    /// Creates the resources of this configuration.
    pub fn new(loaders: Arc<ArcSwap<Loaders>>, images: Images, config: &Config) -> Self {
        Self { loaders, images, settings: ArcSwap::from_pointee(Settings::of(config)) }
    }

    /// Takes over a changed configuration.
    pub fn configure(&self, config: &Config) {
        self.settings.store(Arc::new(Settings::of(config)));
    }

    /// The image of a Machine that names none.
    pub(crate) fn default_image(&self) -> Option<String> {
        self.settings.load().default_image.clone()
    }
}

impl State for Present {
    fn loader(&self, platform: Platform, transport: Transport) -> Option<String> {
        self.loaders.load().name(platform, transport).map(str::to_owned)
    }

    fn image(&self, image: &ImageName) -> ImageState {
        self.images.state(image)
    }

    fn architecture(&self, image: &ImageName) -> Option<String> {
        self.images.architecture(image)
    }

    fn discovery(&self) -> Option<ImageName> {
        self.settings.load().discovery_image.clone().map(ImageName::Configured)
    }
}
