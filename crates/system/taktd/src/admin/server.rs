//! Answers the admin API.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use takt_runtime::RuntimeHandle;
use takt_runtime::capture::CaptureError;
use takt_runtime::control::{MapChannelError, ScheduleError, Stopped};
use takt_runtime::peering::keys::{PeerConfig, PublicKey};
use takt_runtime::status::Page;
use takt_session::ErrorCode;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::proto::admin_server::{Admin, AdminServer};
use super::proto::{
    AddPeerRequest, AddPeerResponse, CaptureRequest, CaptureResponse, EndSessionRequest,
    EndSessionResponse, GetClockRequest, GetClockResponse, GetStatusRequest, GetStatusResponse,
    InstallScheduleRequest, InstallScheduleResponse, ListChannelsRequest, ListChannelsResponse,
    ListDatapathsRequest, ListDatapathsResponse, ListListenersRequest, ListListenersResponse,
    ListNetworksRequest, ListNetworksResponse, ListPeersRequest, ListPeersResponse,
    ListSchedulesRequest, ListSchedulesResponse, ListSessionsRequest, ListSessionsResponse,
    MapChannelRequest, MapChannelResponse, MoveSessionRequest, MoveSessionResponse, NextKeyRequest,
    NextKeyResponse, RelieveChannelRequest, RelieveChannelResponse, ReloadRequest, ReloadResponse,
    RemoveListenerRequest, RemoveListenerResponse, RemovePeerRequest, RemovePeerResponse,
    RemoveScheduleRequest, RemoveScheduleResponse, RemoveStationRequest, RemoveStationResponse,
    SetListenerRequest, SetListenerResponse, SetStationRequest, SetStationResponse,
    SwitchKeyRequest, SwitchKeyResponse, WatchRequest, WatchResponse,
};
use super::socket::{self, SocketError};
use super::{capture, incoming, listener, network, schedule, watch as pictures};
use crate::config::value::PeerAddress;
use crate::node::{InstallError, Node, NodeKeyError, ReloadError, SetListenerError};
use crate::other_traffic::By;

/// Periods of `Watch`, milliseconds.
const PERIODS: std::ops::RangeInclusive<u32> = 100..=60_000;
/// What `Watch` takes for 0.
const USUAL_PERIOD: u32 = 1000;
/// Connections are asked so often whether somebody is there, and have so long to answer.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// The node is stopping, or the runtime has ended.
pub(super) fn unavailable() -> Status {
    Status::unavailable("the node is stopping")
}

/// A bound admin socket that is not yet served.
pub struct AdminApi {
    socket: socket::AdminSocket,
}

impl AdminApi {
    /// Opens the socket at `path` with these permission bits.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, SocketError> {
        Ok(Self {
            socket: socket::open(path, mode)?,
        })
    }

    /// Serves until `stop` is true and the calls under way are answered.
    ///
    /// # Errors
    /// The transport's.
    pub async fn serve(
        self,
        node: Arc<Node>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), tonic::transport::Error> {
        let service = Service {
            admin_socket: node.settings().admin.0,
            node,
            stop: stop.clone(),
        };
        let socket::AdminSocket { listener, path } = self.socket;
        let result = tonic::transport::Server::builder()
            // Who has begun and answers nothing any more keeps no place of others.
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_service(AdminServer::new(service))
            .serve_with_incoming_shutdown(incoming::connections(listener), async move {
                // An error: nobody is left to say stop, which is as good.
                let _ = stop.wait_for(|stop| *stop).await;
            })
            .await;
        drop(path);
        result
    }
}

struct Service {
    node: Arc<Node>,
    admin_socket: PathBuf,
    stop: watch::Receiver<bool>,
}

impl Service {
    /// Does something with the node that waits, without holding up other calls.
    async fn blocking<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Node) -> R + Send + 'static,
    ) -> Result<R, Status> {
        let node = self.node.clone();
        let done = tokio::task::spawn_blocking(move || job(&node)).await;
        done.map_err(|_| unavailable())
    }

    /// Writes down which schedules there are, for the next start.
    async fn keep_schedules(&self) -> Result<(), Status> {
        let node = self.node.clone();
        match tokio::task::spawn_blocking(move || node.keep_schedules()).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(Status::internal(format!(
                "done, but not for the next start of the node: {error}"
            ))),
            Ok(Err(Stopped)) | Err(_) => Err(unavailable()),
        }
    }

    /// Changes a listener without holding up other calls.
    async fn listen<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Node) -> Result<R, SetListenerError> + Send + 'static,
    ) -> Result<R, Status> {
        let node = self.node.clone();
        match tokio::task::spawn_blocking(move || job(&node)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error @ (SetListenerError::Listen(_) | SetListenerError::NoState))) => {
                Err(Status::failed_precondition(error.to_string()))
            }
            Ok(Err(error @ SetListenerError::NotKept(_))) => {
                Err(Status::internal(error.to_string()))
            }
            Ok(Err(SetListenerError::Stopped(_))) | Err(_) => Err(unavailable()),
        }
    }

    /// Changes the node's key without holding up other calls.
    async fn rotate<R: Send + 'static>(
        &self,
        job: impl FnOnce(&Node) -> Result<R, NodeKeyError> + Send + 'static,
    ) -> Result<R, Status> {
        let node = self.node.clone();
        match tokio::task::spawn_blocking(move || job(&node)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(NodeKeyError::Stopped(_))) | Err(_) => Err(unavailable()),
            Ok(Err(error)) => Err(Status::failed_precondition(error.to_string())),
        }
    }

    /// Asks the control thread without holding up other calls.
    async fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&RuntimeHandle) -> Result<R, Stopped> + Send + 'static,
    ) -> Result<R, Status> {
        let handle = self.node.handle().clone();
        match tokio::task::spawn_blocking(move || job(&handle)).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(unavailable()),
        }
    }
}

/// A public key as it is written; `None` if it is empty.
fn public_key(name: &str, text: &str) -> Result<Option<PublicKey>, Status> {
    let invalid =
        |error| Status::invalid_argument(format!("{name}: `{text}` is no public key: {error}"));
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(invalid),
    }
}

fn messages<T, M: From<T>>(list: Vec<T>) -> Vec<M> {
    list.into_iter().map(M::from).collect()
}

/// Whether `peer` is an address of this host, with the node's own port. Only such an address can be bound to.
fn is_this_node(peer: SocketAddr, own: SocketAddr) -> bool {
    peer.port() == own.port()
        && (peer.ip() == own.ip()
            || own.ip().is_unspecified() && std::net::UdpSocket::bind((peer.ip(), 0)).is_ok())
}

fn peer(address: &str) -> Result<SocketAddr, Status> {
    address
        .parse::<PeerAddress>()
        .map(|address| address.0)
        .map_err(|fault| Status::invalid_argument(format!("address: {fault}")))
}

#[tonic::async_trait]
impl Admin for Service {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        let node = Some(self.ask(RuntimeHandle::status).await?.into());
        Ok(Response::new(GetStatusResponse { node }))
    }

    async fn list_sessions(
        &self,
        request: Request<ListSessionsRequest>,
    ) -> Result<Response<ListSessionsResponse>, Status> {
        let ListSessionsRequest {
            identity,
            first,
            limit,
        } = request.into_inner();
        let page = move |handle: &RuntimeHandle| {
            let identity = Some(identity.as_str()).filter(|identity| !identity.is_empty());
            match limit {
                0 => handle.sessions_of(identity, first).map(|entries| Page {
                    entries,
                    next: None,
                }),
                limit => handle.session_page(identity, first, limit as usize),
            }
        };
        let page = self.ask(page).await?;
        Ok(Response::new(ListSessionsResponse {
            sessions: messages(page.entries),
            next: page.next.unwrap_or(0),
        }))
    }

    async fn end_session(
        &self,
        request: Request<EndSessionRequest>,
    ) -> Result<Response<EndSessionResponse>, Status> {
        let EndSessionRequest {
            session,
            mut reason,
        } = request.into_inner();
        if reason.is_empty() {
            reason = "ended by the operator".into();
        }
        tracing::info!(session, reason, "admin: session to be ended");
        let ended = self
            .ask(move |handle| handle.end_session(session, reason))
            .await?;
        Ok(Response::new(EndSessionResponse { ended }))
    }

    async fn move_session(
        &self,
        request: Request<MoveSessionRequest>,
    ) -> Result<Response<MoveSessionResponse>, Status> {
        let MoveSessionRequest { session, lane } = request.into_inner();
        tracing::info!(session, lane, "admin: session to be moved");
        let moved = self
            .ask(move |handle| handle.move_session(session, lane as usize))
            .await?;
        moved.map_err(|failure| match failure.code {
            ErrorCode::NotFound => Status::not_found(failure.message),
            _ => Status::failed_precondition(failure.message),
        })?;
        Ok(Response::new(MoveSessionResponse {}))
    }

    async fn relieve_channel(
        &self,
        request: Request<RelieveChannelRequest>,
    ) -> Result<Response<RelieveChannelResponse>, Status> {
        let RelieveChannelRequest {
            channel,
            readers,
            rule,
        } = request.into_inner();
        let rule = takt_session::printable(&rule);
        tracing::info!(
            channel,
            readers,
            rule,
            "admin: sessions of a channel to leave their lanes"
        );
        let (moved, stay) = self
            .ask(move |handle| handle.relieve_channel(channel, readers, rule))
            .await?;
        Ok(Response::new(RelieveChannelResponse {
            moved: u32::try_from(moved).unwrap_or(u32::MAX),
            stay: stay.map(|why| why.to_string()).unwrap_or_default(),
        }))
    }

    async fn map_channel(
        &self,
        request: Request<MapChannelRequest>,
    ) -> Result<Response<MapChannelResponse>, Status> {
        let MapChannelRequest { channel, datapath } = request.into_inner();
        tracing::info!(channel, datapath, "admin: channel to be mapped");
        let datapath = (!datapath.is_empty()).then_some(datapath);
        let mapped = self
            .ask(move |handle| handle.map_channel(channel, datapath))
            .await?;
        let streams = mapped.map_err(|error| match error {
            MapChannelError::Datapath { .. } => Status::invalid_argument(error.to_string()),
            MapChannelError::Full => Status::resource_exhausted(error.to_string()),
        })?;
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        Ok(Response::new(MapChannelResponse { streams }))
    }

    async fn list_channels(
        &self,
        request: Request<ListChannelsRequest>,
    ) -> Result<Response<ListChannelsResponse>, Status> {
        let ListChannelsRequest { first, limit } = request.into_inner();
        let most = match limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let channels = self
            .ask(move |handle| handle.channels_from(first, most))
            .await?;
        Ok(Response::new(ListChannelsResponse {
            channels: messages(channels),
        }))
    }

    async fn list_peers(
        &self,
        _: Request<ListPeersRequest>,
    ) -> Result<Response<ListPeersResponse>, Status> {
        let peers = messages(self.ask(RuntimeHandle::peers).await?);
        Ok(Response::new(ListPeersResponse { peers }))
    }

    async fn add_peer(
        &self,
        request: Request<AddPeerRequest>,
    ) -> Result<Response<AddPeerResponse>, Status> {
        let request = request.into_inner();
        let address = peer(&request.address)?;
        let key = public_key("key", &request.key)?;
        let next_key = public_key("next_key", &request.next_key)?;
        if key.is_none() && next_key.is_some() {
            return Err(Status::invalid_argument(
                "next_key: the peer has no key that this one could follow: give both",
            ));
        }
        let own = self.ask(RuntimeHandle::status).await?.control_address;
        if address.is_ipv4() != own.is_ipv4() {
            return Err(Status::invalid_argument(format!(
                "address: {address} is of another address family than this node's {own}"
            )));
        }
        if is_this_node(address, own) {
            return Err(Status::invalid_argument(format!(
                "address: {address} is this node itself (it answers at {own}); name another node, or name the daemon \
                 that is to add it with --admin"
            )));
        }
        let peer = PeerConfig {
            address,
            key,
            next_key,
        };
        let added = self
            .ask(move |handle| handle.add_peer(peer))
            .await?
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        if added {
            tracing::info!(%address, "admin: peer added");
        }
        Ok(Response::new(AddPeerResponse { added }))
    }

    async fn remove_peer(
        &self,
        request: Request<RemovePeerRequest>,
    ) -> Result<Response<RemovePeerResponse>, Status> {
        let address = peer(&request.into_inner().address)?;
        let removed = self.ask(move |handle| handle.remove_peer(address)).await?;
        if removed {
            tracing::info!(%address, "admin: peer removed");
        }
        Ok(Response::new(RemovePeerResponse { removed }))
    }

    async fn next_key(
        &self,
        _: Request<NextKeyRequest>,
    ) -> Result<Response<NextKeyResponse>, Status> {
        let key = self.rotate(Node::next_key).await?.to_string();
        Ok(Response::new(NextKeyResponse { key }))
    }

    async fn switch_key(
        &self,
        request: Request<SwitchKeyRequest>,
    ) -> Result<Response<SwitchKeyResponse>, Status> {
        let wanted = public_key("key", &request.into_inner().key)?;
        let (key, switched) = self.rotate(move |node| node.switch_key(wanted)).await?;
        Ok(Response::new(SwitchKeyResponse {
            key: key.to_string(),
            switched,
        }))
    }

    async fn list_datapaths(
        &self,
        _: Request<ListDatapathsRequest>,
    ) -> Result<Response<ListDatapathsResponse>, Status> {
        let datapaths = messages(self.ask(RuntimeHandle::datapaths).await?);
        Ok(Response::new(ListDatapathsResponse { datapaths }))
    }

    async fn list_listeners(
        &self,
        _: Request<ListListenersRequest>,
    ) -> Result<Response<ListListenersResponse>, Status> {
        let mut there = self.ask(RuntimeHandle::listeners).await?;
        there.sort_by(|a, b| a.path.cmp(&b.path));
        let listeners = there.into_iter().map(listener::to_message).collect();
        Ok(Response::new(ListListenersResponse { listeners }))
    }

    async fn set_listener(
        &self,
        request: Request<SetListenerRequest>,
    ) -> Result<Response<SetListenerResponse>, Status> {
        let SetListenerRequest {
            listener,
            keep,
            take_streams_from: from,
        } = request.into_inner();
        let message = listener
            .ok_or_else(|| Status::invalid_argument("listener is missing: say what to set"))?;
        let config = listener::from_message(message.clone(), &self.admin_socket)
            .map_err(Status::invalid_argument)?;
        let path = config.path.clone();
        let identity = config.policy.identity.clone();
        let from = (!from.is_empty()).then(|| PathBuf::from(from));
        self.listen(move |node| node.set_listener(config, message, keep, from))
            .await?;
        tracing::info!(path = %path.display(), identity, "admin: listener set");
        Ok(Response::new(SetListenerResponse {}))
    }

    async fn remove_listener(
        &self,
        request: Request<RemoveListenerRequest>,
    ) -> Result<Response<RemoveListenerResponse>, Status> {
        let path = PathBuf::from(request.into_inner().path);
        let removing = path.clone();
        let removed = self
            .listen(move |node| node.remove_listener(removing))
            .await?;
        if removed {
            tracing::info!(path = %path.display(), "admin: listener removed");
        }
        Ok(Response::new(RemoveListenerResponse { removed }))
    }

    async fn list_networks(
        &self,
        _: Request<ListNetworksRequest>,
    ) -> Result<Response<ListNetworksResponse>, Status> {
        let networks = messages(self.ask(RuntimeHandle::networks).await?);
        Ok(Response::new(ListNetworksResponse { networks }))
    }

    async fn set_station(
        &self,
        request: Request<SetStationRequest>,
    ) -> Result<Response<SetStationResponse>, Status> {
        let SetStationRequest { network, station } = request.into_inner();
        let message = station
            .ok_or_else(|| Status::invalid_argument("station is missing: say what to enter"))?;
        let station = network::from_message(&message).map_err(Status::invalid_argument)?;
        self.ask(move |handle| handle.set_station(network, station))
            .await?
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(SetStationResponse {}))
    }

    async fn remove_station(
        &self,
        request: Request<RemoveStationRequest>,
    ) -> Result<Response<RemoveStationResponse>, Status> {
        let request = request.into_inner();
        let mac = listener::mac("mac", &request.mac).map_err(Status::invalid_argument)?;
        let vtep = network::vtep(&request.vtep).map_err(Status::invalid_argument)?;
        let removed = self
            .ask(move |handle| handle.remove_station(request.network, mac.0, vtep))
            .await?
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(Response::new(RemoveStationResponse { removed }))
    }

    async fn list_schedules(
        &self,
        _: Request<ListSchedulesRequest>,
    ) -> Result<Response<ListSchedulesResponse>, Status> {
        let mut links: Vec<super::proto::LinkSchedule> =
            messages(self.ask(RuntimeHandle::schedules).await?);
        let links = self
            .blocking(move |node| {
                for link in &mut links {
                    let told = node.other_traffic(&link.datapath);
                    link.interface = told.interface;
                    link.other_traffic_by = told.by.map_or("", By::name).into();
                    link.other_traffic_problem = told.problem;
                }
                links
            })
            .await?;
        let kept = self.ask(RuntimeHandle::kept_schedules).await?.into_iter();
        let kept = kept.map(|kept| kept.asked);
        let absent = schedule::absent(&links, kept, self.node.settings().runtime.schedules);
        Ok(Response::new(ListSchedulesResponse { links, absent }))
    }

    async fn install_schedule(
        &self,
        request: Request<InstallScheduleRequest>,
    ) -> Result<Response<InstallScheduleResponse>, Status> {
        let asked =
            schedule::from_request(request.into_inner()).map_err(Status::invalid_argument)?;
        let begins = self
            .blocking(move |node| node.install_schedule(asked))
            .await?
            .map_err(|Stopped| unavailable())?
            .map_err(|error| match error {
                InstallError::Schedule(ScheduleError::Clock(_)) | InstallError::OtherTraffic(_) => {
                    Status::failed_precondition(error.to_string())
                }
                _ => Status::invalid_argument(error.to_string()),
            })?;
        let begins_ns = begins.as_nanos();
        self.keep_schedules().await?;
        Ok(Response::new(InstallScheduleResponse { begins_ns }))
    }

    async fn remove_schedule(
        &self,
        request: Request<RemoveScheduleRequest>,
    ) -> Result<Response<RemoveScheduleResponse>, Status> {
        let datapath = request.into_inner().datapath;
        let removed = self
            .blocking(move |node| node.remove_schedule(datapath))
            .await?
            .map_err(|Stopped| unavailable())?;
        self.keep_schedules().await?;
        Ok(Response::new(RemoveScheduleResponse { removed }))
    }

    async fn get_clock(
        &self,
        request: Request<GetClockRequest>,
    ) -> Result<Response<GetClockResponse>, Status> {
        let required = request.into_inner().required_ns.map(Duration::from_nanos);
        let status = self.ask(RuntimeHandle::clock).await?;
        let unmet = status.as_ref().zip(required);
        let unmet = unmet.and_then(|(status, required)| status.within(required).err());
        Ok(Response::new(GetClockResponse {
            clock: status.as_ref().map(Into::into),
            unmet: unmet.map_or_else(String::new, |unmet| unmet.to_string()),
        }))
    }

    async fn reload(&self, _: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let node = self.node.clone();
        let report = match tokio::task::spawn_blocking(move || node.reload()).await {
            Ok(Ok(report)) => report,
            Ok(Err(ReloadError::Config(fault))) => {
                tracing::error!(error = %fault, "nothing reloaded");
                return Err(Status::failed_precondition(fault.to_string()));
            }
            Ok(Err(ReloadError::Stopped(_))) | Err(_) => return Err(unavailable()),
        };
        report.log();
        Ok(Response::new(ReloadResponse {
            changed: report.changed,
            needs_restart: report.needs_restart,
            failed: report.failed,
        }))
    }

    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let period = match request.into_inner().period_ms {
            0 => USUAL_PERIOD,
            period => period,
        };
        if !PERIODS.contains(&period) {
            return Err(Status::invalid_argument(format!(
                "period_ms = {period}: write {} to {}, or 0 for {USUAL_PERIOD}",
                PERIODS.start(),
                PERIODS.end()
            )));
        }
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(pictures::send(
            self.node.clone(),
            Duration::from_millis(period.into()),
            self.stop.clone(),
            sender,
        ));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type CaptureStream = ReceiverStream<Result<CaptureResponse, Status>>;

    async fn capture(
        &self,
        request: Request<CaptureRequest>,
    ) -> Result<Response<Self::CaptureStream>, Status> {
        let CaptureRequest { identities, snap } = request.into_inner();
        let snap = match snap {
            0 => capture::MOST_SNAP,
            snap if snap <= capture::MOST_SNAP => snap,
            snap => {
                return Err(Status::invalid_argument(format!(
                    "snap = {snap}: write 1 to {}, or 0 for all",
                    capture::MOST_SNAP
                )));
            }
        };
        let begun = self
            .ask(move |handle| handle.capture(identities, snap as usize))
            .await?
            .map_err(|error| match error {
                CaptureError::Unknown(_) => Status::invalid_argument(error.to_string()),
                CaptureError::TooMany => Status::resource_exhausted(error.to_string()),
            })?;
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(capture::send(begun, self.stop.clone(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
