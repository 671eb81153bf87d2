//! The reservations of a Kubernetes cluster as its API server tells them: what nodes publish (ResourceSlices), and who
//! has claimed what of it (ResourceClaims). It reads the JSON of a `List`; who fetches that is `status`.
//!
//! [`Cluster::fit`] is the scheduler's test for one claim: so many different cores with so much bandwidth left each.
//! Selectors and constraints are the scheduler's own, and are not looked at.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// The name of the DRA driver whose devices and claims these are.
pub const DRIVER: &str = "cpu.takt.dev";

/// Parts per million of a core.
pub type Ppm = u64;

/// What nodes have, and who has it.
#[derive(Debug, Default, Serialize)]
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub reservations: Vec<Reserved>,
    pub pending: Vec<Pending>,
}

/// What one node publishes.
#[derive(Debug, Serialize)]
pub struct Node {
    pub name: String,
    pub backend: String,
    /// In the order in which the scheduler tries them.
    pub cores: Vec<Core>,
}

/// A core that is offered.
#[derive(Clone, Debug, Serialize)]
pub struct Core {
    pub device: String,
    pub cpu: Option<u64>,
    pub capacity: Ppm,
    /// The most that one reservation may have of it.
    pub most: Ppm,
    pub reserved: Ppm,
    pub free: Ppm,
}

/// What a claim has: a request of it, on a node.
#[derive(Debug, Serialize)]
pub struct Reserved {
    pub namespace: String,
    pub claim: String,
    pub request: String,
    pub pods: Vec<String>,
    pub node: String,
    pub devices: Vec<String>,
    /// Of each core.
    pub bandwidth: Ppm,
    pub runtime: String,
    pub period: String,
    /// The reason of the condition Ready, `Allocated` before the node has said anything.
    pub state: String,
    pub message: String,
    /// The names of the threads that hold it.
    pub threads: Vec<String>,
}

/// A claim that has nothing yet.
#[derive(Debug, Serialize)]
pub struct Pending {
    pub namespace: String,
    pub claim: String,
    pub needs: Vec<Need>,
}

/// A request: its first alternative that there is room for.
#[derive(Clone, Debug, Serialize)]
pub struct Need {
    pub request: String,
    pub alternatives: Vec<Share>,
}

/// So much of each of so many different cores.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Share {
    pub cores: u64,
    pub bandwidth: Ppm,
}

/// Whether a claim has room on a node.
#[derive(Debug, Serialize)]
pub struct Fit {
    pub node: String,
    /// The devices that it would have; empty if it does not fit.
    pub devices: Vec<String>,
    /// Why not; for programs.
    pub code: Option<&'static str>,
    pub why: Option<String>,
}

/// What is wrong with a list of objects.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("this is no JSON: {0}: write `kubectl get resourceslices,resourceclaims -A -o json`")]
    Json(#[from] serde_json::Error),
    #[error(
        "this is no list of objects: write `kubectl get resourceslices,resourceclaims -A -o json`"
    )]
    NoList,
    #[error(
        "{object} has the quantity `{quantity}`, which is no whole number of parts per million"
    )]
    Quantity { object: String, quantity: String },
}

impl Cluster {
    /// Reads a `List` of ResourceSlices and ResourceClaims; objects of other kinds and drivers are passed over.
    ///
    /// # Errors
    /// What is no such list, and capacities that are no whole numbers.
    pub fn read(text: &str) -> Result<Self, ListError> {
        let list: Value = serde_json::from_str(text)?;
        let items = list["items"].as_array().ok_or(ListError::NoList)?;
        let mut cluster = Self::default();
        let of_kind = |kind: &'static str| items.iter().filter(move |item| item["kind"] == kind);
        cluster.read_slices(of_kind("ResourceSlice"))?;
        for claim in of_kind("ResourceClaim") {
            cluster.read_claim(claim)?;
        }
        Ok(cluster)
    }

    fn read_slices<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a Value>,
    ) -> Result<(), ListError> {
        // While a pool changes, slices of two generations are there: the newer one counts.
        let mut pools: BTreeMap<&str, (i64, Vec<&Value>)> = BTreeMap::new();
        for slice in slices.map(|slice| &slice["spec"]) {
            if slice["driver"] != DRIVER {
                continue;
            }
            let generation = slice["pool"]["generation"].as_i64().unwrap_or(0);
            let pool = pools.entry(text(&slice["pool"]["name"])).or_default();
            if generation > pool.0 || pool.1.is_empty() {
                *pool = (generation, Vec::new());
            }
            if generation == pool.0 {
                pool.1.push(slice);
            }
        }
        for (name, (_, slices)) in pools {
            let mut node = Node {
                name: name.to_owned(),
                backend: String::new(),
                cores: Vec::new(),
            };
            for device in slices
                .into_iter()
                .flat_map(|slice| items(&slice["devices"]))
            {
                let attributes = &device["attributes"];
                text(&attributes["backend"]["string"]).clone_into(&mut node.backend);
                let bandwidth = &device["capacity"]["bandwidth"];
                let object = || format!("device {} of {name}", text(&device["name"]));
                let capacity = ppm(&bandwidth["value"], object)?;
                let most = match &bandwidth["requestPolicy"]["validRange"]["max"] {
                    Value::Null => capacity,
                    max => ppm(max, object)?,
                };
                node.cores.push(Core {
                    device: text(&device["name"]).to_owned(),
                    cpu: attributes["cpu"]["int"].as_u64(),
                    capacity,
                    most,
                    reserved: 0,
                    free: capacity,
                });
            }
            self.nodes.push(node);
        }
        Ok(())
    }

    fn read_claim(&mut self, claim: &Value) -> Result<(), ListError> {
        let metadata = &claim["metadata"];
        let namespace = text(&metadata["namespace"]).to_owned();
        let name = text(&metadata["name"]).to_owned();
        let object = || format!("claim {namespace}/{name}");
        let status = &claim["status"];
        let results = items(&status["allocation"]["devices"]["results"]);
        let mut requests: BTreeMap<(&str, &str), Reserved> = BTreeMap::new();
        for result in results.filter(|result| result["driver"] == DRIVER) {
            let (request, node, device) = (
                text(&result["request"]),
                text(&result["pool"]),
                text(&result["device"]),
            );
            let bandwidth = match &result["consumedCapacity"]["bandwidth"] {
                Value::Null => 0,
                quantity => ppm(quantity, object)?,
            };
            let cores = self.nodes.iter_mut().filter(|known| known.name == node);
            let core = cores
                .flat_map(|node| &mut node.cores)
                .find(|core| core.device == device);
            if let Some(core) = core {
                core.reserved += bandwidth;
                core.free = core.capacity.saturating_sub(core.reserved);
            }
            let parameters = parameters(claim, request);
            let reserved = requests.entry((request, node)).or_insert_with(|| Reserved {
                namespace: namespace.clone(),
                claim: name.clone(),
                request: request.to_owned(),
                pods: items(&status["reservedFor"])
                    .map(|pod| text(&pod["name"]).to_owned())
                    .collect(),
                node: node.to_owned(),
                devices: Vec::new(),
                bandwidth,
                runtime: text(&parameters["runtime"]).to_owned(),
                period: text(&parameters["period"]).to_owned(),
                state: "Allocated".to_owned(),
                message: String::new(),
                threads: Vec::new(),
            });
            reserved.devices.push(device.to_owned());
            let said = items(&status["devices"]).find(|said| {
                said["device"] == device
                    && said["pool"] == node
                    && said["shareID"] == result["shareID"]
            });
            let Some(said) = said else { continue };
            let condition = items(&said["conditions"]).find(|of| of["type"] == "Ready");
            if let Some(condition) = condition {
                text(&condition["reason"]).clone_into(&mut reserved.state);
                text(&condition["message"]).clone_into(&mut reserved.message);
            }
            let threads = items(&said["data"]["threads"]);
            reserved
                .threads
                .extend(threads.map(|thread| text(&thread["name"]).to_owned()));
        }
        self.reservations.extend(requests.into_values());
        let ours = items(&claim["spec"]["devices"]["config"])
            .any(|config| config["opaque"]["driver"] == DRIVER);
        if status["allocation"].is_null() && ours {
            let needs = needs(claim, object)?;
            self.pending.push(Pending {
                namespace,
                claim: name,
                needs,
            });
        }
        Ok(())
    }

    /// Where a claim with these requests has room, node by node.
    #[must_use]
    pub fn fit(&self, needs: &[Need]) -> Vec<Fit> {
        self.nodes.iter().map(|node| node.fit(needs)).collect()
    }
}

impl Node {
    /// Gives each request the first cores with room, as the scheduler's allocator does, the largest request first.
    fn fit(&self, needs: &[Need]) -> Fit {
        let mut cores = self.cores.clone();
        let mut devices = Vec::new();
        let mut largest_first: Vec<&Need> = needs.iter().collect();
        largest_first.sort_by_key(|need| {
            let most = need.alternatives.iter().map(|share| share.bandwidth).max();
            std::cmp::Reverse(most)
        });
        for need in largest_first {
            let mut why = None;
            let taken = need
                .alternatives
                .iter()
                .find_map(|share| match take(&mut cores, *share) {
                    Ok(taken) => Some(taken),
                    Err(reason) => {
                        why.get_or_insert(reason);
                        None
                    }
                });
            match (taken, why) {
                (Some(taken), _) => devices.extend(taken),
                (None, why) => {
                    let (code, why) = why.unzip();
                    return Fit {
                        node: self.name.clone(),
                        devices: Vec::new(),
                        code,
                        why,
                    };
                }
            }
        }
        Fit {
            node: self.name.clone(),
            devices,
            code: None,
            why: None,
        }
    }
}

/// Takes a share of so many cores, or says why there is none.
fn take(cores: &mut [Core], share: Share) -> Result<Vec<String>, (&'static str, String)> {
    let wanted = usize::try_from(share.cores).unwrap_or(usize::MAX);
    let allowed = cores.iter().filter(|core| share.bandwidth <= core.most);
    if cores.len() < wanted {
        let reason = format!("it offers {} cores, not {wanted}", cores.len());
        return Err(("TooFewCores", reason));
    }
    if allowed.count() < wanted {
        let most = cores.iter().map(|core| core.most).max().unwrap_or(0);
        let reason = format!(
            "it gives one reservation at most {most} of a core (maxDensity), not {}",
            share.bandwidth
        );
        return Err(("DensityExceeded", reason));
    }
    let room = |core: &Core| share.bandwidth <= core.most && share.bandwidth <= core.free;
    let have = cores.iter().filter(|core| room(core)).count();
    if have < wanted {
        let most = cores.iter().map(|core| core.free).max().unwrap_or(0);
        let reason = format!(
            "{have} of {wanted} cores have {} free; the most that one has is {most}",
            share.bandwidth
        );
        return Err(("BandwidthExceeded", reason));
    }
    let taken = cores.iter_mut().filter(|core| room(core)).take(wanted);
    Ok(taken
        .map(|core| {
            core.free -= share.bandwidth;
            core.device.clone()
        })
        .collect())
}

/// The parameters that hold for a request: the last that are for it, those of the claim before those of its class.
fn parameters<'a>(claim: &'a Value, request: &str) -> &'a Value {
    let main = request.split('/').next().unwrap_or(request);
    let concerns = |config: &&Value| {
        let mut names = items(&config["requests"]).peekable();
        config["opaque"]["driver"] == DRIVER
            && (names.peek().is_none() || names.any(|name| name == request || name == main))
    };
    let allocated = items(&claim["status"]["allocation"]["devices"]["config"])
        .filter(|config| config["source"] == "FromClaim");
    let asked = items(&claim["spec"]["devices"]["config"]);
    let of_class = items(&claim["status"]["allocation"]["devices"]["config"])
        .filter(|config| config["source"] == "FromClass");
    let found = allocated
        .filter(concerns)
        .last()
        .or_else(|| asked.filter(concerns).last())
        .or_else(|| of_class.filter(concerns).last());
    found.map_or(&Value::Null, |config| &config["opaque"]["parameters"])
}

fn needs(claim: &Value, object: impl Fn() -> String) -> Result<Vec<Need>, ListError> {
    let share = |of: &Value| -> Result<Share, ListError> {
        Ok(Share {
            cores: of["count"].as_u64().unwrap_or(1),
            bandwidth: match &of["capacity"]["requests"]["bandwidth"] {
                Value::Null => 0,
                quantity => ppm(quantity, &object)?,
            },
        })
    };
    items(&claim["spec"]["devices"]["requests"])
        .map(|request| {
            let alternatives = match &request["exactly"] {
                Value::Null => items(&request["firstAvailable"]).map(share).collect(),
                exactly => share(exactly).map(|share| vec![share]),
            };
            Ok(Need {
                request: text(&request["name"]).to_owned(),
                alternatives: alternatives?,
            })
        })
        .collect()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A Kubernetes quantity that is a whole number: the API server writes 600000 as `600k`.
fn ppm(quantity: &Value, object: impl Fn() -> String) -> Result<Ppm, ListError> {
    let written = match quantity {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (digits, unit) = match written.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
        Some((at, _)) => written.split_at(at),
        None => (written.as_str(), ""),
    };
    let unit = match unit {
        "" => Some(1),
        "k" => Some(1_000),
        "M" => Some(1_000_000),
        _ => None,
    };
    let value = digits.parse::<Ppm>().ok().zip(unit);
    value
        .and_then(|(digits, unit)| digits.checked_mul(unit))
        .ok_or_else(|| ListError::Quantity {
            object: object(),
            quantity: written.escape_debug().to_string(),
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, generation: u64, devices: &[(&str, &str, &str)]) -> Value {
        let devices: Vec<Value> = devices
            .iter()
            .enumerate()
            .map(|(cpu, (name, capacity, most))| {
                json!({
                    "name": name,
                    "attributes": {"backend": {"string": "deadline"}, "cpu": {"int": cpu}},
                    "capacity": {"bandwidth": {"value": capacity, "requestPolicy": {"validRange": {"min": "1", "max": most}}}},
                })
            })
            .collect();
        json!({
            "kind": "ResourceSlice",
            "spec": {"driver": DRIVER, "pool": {"name": name, "generation": generation}, "devices": devices},
        })
    }

    fn claim(name: &str, cores: u64, bandwidth: &str, on: &[(&str, &str)]) -> Value {
        let results: Vec<Value> = on
            .iter()
            .map(|(node, device)| {
                json!({"driver": DRIVER, "request": "cpu", "pool": node, "device": device, "consumedCapacity": {"bandwidth": bandwidth}})
            })
            .collect();
        let mut claim = json!({
            "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": name},
            "spec": {"devices": {
                "requests": [{"name": "cpu", "exactly": {"count": cores, "capacity": {"requests": {"bandwidth": bandwidth}}}}],
                "config": [{"opaque": {"driver": DRIVER, "parameters": {"runtime": "3ms", "period": "10ms"}}}],
            }},
            "status": {"reservedFor": [{"resource": "pods", "name": "pod"}]},
        });
        if !on.is_empty() {
            claim["status"]["allocation"] = json!({"devices": {"results": results}});
        }
        claim
    }

    fn read(items: &[Value]) -> Cluster {
        Cluster::read(&json!({"kind": "List", "items": items}).to_string()).unwrap()
    }

    fn need(cores: u64, bandwidth: Ppm) -> Vec<Need> {
        vec![Need {
            request: "cpu".to_owned(),
            alternatives: vec![Share { cores, bandwidth }],
        }]
    }

    #[test]
    fn what_claims_have_is_not_free() {
        let cluster = read(&[
            node(
                "a",
                1,
                &[("cpu-0", "900k", "600k"), ("cpu-1", "900000", "600000")],
            ),
            claim("one", 1, "300k", &[("a", "cpu-1")]),
            claim("two", 2, "100k", &[("a", "cpu-0"), ("a", "cpu-1")]),
        ]);
        let free: Vec<Ppm> = cluster.nodes[0]
            .cores
            .iter()
            .map(|core| core.free)
            .collect();
        assert_eq!(free, [800_000, 500_000]);
        assert_eq!(cluster.reservations.len(), 2);
        assert_eq!(cluster.reservations[1].devices, ["cpu-0", "cpu-1"]);
        assert_eq!(cluster.reservations[0].runtime, "3ms");
        assert_eq!(cluster.reservations[0].pods, ["pod"]);
        assert!(cluster.pending.is_empty());
    }

    #[test]
    fn a_claim_that_has_no_room_is_told_why_by_each_node() {
        let cluster = read(&[
            node(
                "full",
                1,
                &[("cpu-0", "900k", "900k"), ("cpu-1", "900k", "900k")],
            ),
            node("small", 1, &[("cpu-0", "900k", "900k")]),
            node(
                "light",
                1,
                &[("cpu-0", "900k", "100k"), ("cpu-1", "900k", "100k")],
            ),
            node(
                "free",
                1,
                &[("cpu-0", "900k", "900k"), ("cpu-1", "900k", "900k")],
            ),
            claim("large", 1, "800k", &[("full", "cpu-0")]),
            claim("waits", 2, "500k", &[]),
        ]);
        assert_eq!(cluster.pending.len(), 1);
        let fits = cluster.fit(&cluster.pending[0].needs);
        let codes: BTreeMap<&str, Option<&str>> = fits
            .iter()
            .map(|fit| (fit.node.as_str(), fit.code))
            .collect();
        assert_eq!(
            codes,
            BTreeMap::from([
                ("free", None),
                ("full", Some("BandwidthExceeded")),
                ("light", Some("DensityExceeded")),
                ("small", Some("TooFewCores")),
            ])
        );
        let free = fits.iter().find(|fit| fit.node == "free").unwrap();
        assert_eq!(free.devices, ["cpu-0", "cpu-1"]);
    }

    #[test]
    fn requests_of_one_claim_share_what_is_left() {
        let cluster = read(&[node("a", 1, &[("cpu-0", "900k", "900k")])]);
        let both = [need(1, 500_000), need(1, 400_000)].concat();
        assert_eq!(cluster.fit(&both)[0].devices, ["cpu-0", "cpu-0"]);
        let over = [need(1, 400_001), need(1, 500_000)].concat();
        assert_eq!(cluster.fit(&over)[0].code, Some("BandwidthExceeded"));
    }

    #[test]
    fn the_newest_generation_of_a_pool_counts() {
        let cluster = read(&[
            node("a", 2, &[("cpu-0", "100k", "100k")]),
            node("a", 3, &[("cpu-0", "200k", "200k")]),
            node(
                "a",
                1,
                &[("cpu-0", "300k", "300k"), ("cpu-1", "300k", "300k")],
            ),
        ]);
        assert_eq!(cluster.nodes.len(), 1);
        assert_eq!(cluster.nodes[0].cores.len(), 1);
        assert_eq!(cluster.nodes[0].cores[0].capacity, 200_000);
    }

    #[test]
    fn claims_of_others_are_passed_over_and_nonsense_is_named() {
        let mut of_another = claim("gpu", 1, "1", &[]);
        of_another["spec"]["devices"]["config"][0]["opaque"]["driver"] = json!("gpu.example.com");
        assert!(read(&[of_another]).pending.is_empty());
        for wrong in ["", "[]", "{\"kind\": \"Pod\"}"] {
            assert!(Cluster::read(wrong).is_err(), "{wrong}");
        }
        for quantity in [
            "",
            "-1",
            "1.5",
            "1Ki",
            "99999999999999999999",
            "99999999999999999M",
        ] {
            let items = json!({"items": [node("a", 1, &[("cpu-0", quantity, "1")])]});
            let error = Cluster::read(&items.to_string()).unwrap_err().to_string();
            assert!(
                error.contains("cpu-0") && error.contains(quantity),
                "{error}"
            );
        }
    }
}
