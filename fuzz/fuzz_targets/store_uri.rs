//! A store URI gives absolute paths without `.` and `..`, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_store::{Environment, StoreConfig};

fuzz_target!(|uri: &str| {
    if let Ok(config) = StoreConfig::parse(uri, &Environment::default()) {
        for path in [&config.real_store_dir, &config.state_dir, &config.log_dir, &config.daemon_socket] {
            assert!(path.is_absolute(), "{}", path.display());
            let plain = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
            assert!(plain, "{}", path.display());
        }
    }
});
