-- SPDX-License-Identifier: Apache-2.0
--
-- Wireshark's decode of what runtimes of Takt send each other: channel datagrams (version 2), peering messages, handshakes and
-- announcements (version 3), as docs/reference/wire-format.md has them; trailers that `takt stamp` puts behind packets of others; and beats of
-- `takt balance` (docs/reference/balance.md).
--
--   tshark -X lua_script:takt.lua -r trace.pcapng -Y takt.channel==7
--   cp takt.lua ~/.local/lib/wireshark/plugins/        for good
--
-- Datagrams are recognised by what is in them, whatever their ports are. Channel datagrams that are encrypted show nothing of
-- themselves: they are, on ports of Takt that are named in the preferences (takt.ports; 7400-7499 unless said).

local takt = Proto("takt", "Takt")

takt.prefs.ports = Pref.range("UDP ports", "7400-7499", "Ports on which everything is taken for Takt's", 65535)

local protections = { [0] = "none", [1] = "integrity", [2] = "encrypt" }
local kinds = { [0] = "message", [1] = "reliable message", [2] = "announcement", [3] = "acknowledgement" }
local types = {
	[1] = "hello", [2] = "subscriptions", [3] = "acknowledge", [4] = "goodbye", [5] = "progress", [6] = "introductions",
	[16] = "initiate", [17] = "cookie", [18] = "respond", [19] = "sealed", [20] = "announcement",
}
local as_whom = { [0] = "a node by its own key", [1] = "a node of a group", [2] = "without protection" }

local f = {
	-- datagram
	version = ProtoField.uint8("takt.version", "Version"),
	protection = ProtoField.uint8("takt.protection", "Protection", base.DEC, protections),
	count = ProtoField.uint16("takt.records", "Records"),
	sender = ProtoField.uint32("takt.sender", "Sending lane", base.HEX),
	send_time = ProtoField.int64("takt.send_time", "Send time (TAI, ns)"),
	session = ProtoField.uint8("takt.session", "Session of the key"),
	counter = ProtoField.uint64("takt.counter", "Counter"),
	tag = ProtoField.bytes("takt.tag", "Tag"),
	encrypted = ProtoField.bytes("takt.encrypted", "Encrypted records"),
	-- record
	record = ProtoField.none("takt.record", "Record"),
	channel = ProtoField.uint64("takt.channel", "Channel"),
	source = ProtoField.uint32("takt.source", "Source"),
	sequence = ProtoField.uint32("takt.sequence", "Sequence"),
	length = ProtoField.uint32("takt.length", "Length of the message"),
	stride = ProtoField.uint16("takt.stride", "Fragment stride"),
	class = ProtoField.uint8("takt.class", "Traffic class"),
	kind = ProtoField.uint8("takt.kind", "Kind", base.DEC, kinds),
	fragment = ProtoField.uint32("takt.fragment", "Fragment"),
	number = ProtoField.uint32("takt.number", "Number of the record"),
	payload = ProtoField.bytes("takt.payload", "Payload"),
	padding = ProtoField.bytes("takt.padding", "Padding"),
	-- announcement of a reliable source
	oldest = ProtoField.uint32("takt.announcement.oldest", "Oldest record"),
	next_record = ProtoField.uint32("takt.announcement.next", "Next record"),
	round_trip = ProtoField.int64("takt.announcement.round_trip", "Round trip (ns)"),
	stamp = ProtoField.int64("takt.stamp", "Stamp (ns)"),
	first_message = ProtoField.uint32("takt.announcement.first_message", "First message"),
	next_message = ProtoField.uint32("takt.announcement.next_message", "Next message"),
	epoch = ProtoField.uint32("takt.announcement.epoch", "Epoch", base.HEX),
	patience = ProtoField.uint32("takt.announcement.patience", "Patience (us)"),
	-- acknowledgement
	here_before = ProtoField.uint32("takt.acknowledgement.next", "All before"),
	limit = ProtoField.uint32("takt.acknowledgement.limit", "Room before"),
	span = ProtoField.uint32("takt.acknowledgement.span", "Span"),
	lacking = ProtoField.uint32("takt.acknowledgement.lacking", "Lacking before"),
	held = ProtoField.int64("takt.acknowledgement.held", "Held (ns)"),
	here = ProtoField.bytes("takt.acknowledgement.here", "Here"),
	room_messages = ProtoField.uint32("takt.acknowledgement.messages", "Room for messages"),
	room_bytes = ProtoField.uint32("takt.acknowledgement.bytes", "Room for bytes"),
	-- peering
	magic = ProtoField.string("takt.magic", "Magic"),
	type = ProtoField.uint8("takt.peering.type", "Type", base.DEC, types),
	incarnation = ProtoField.uint64("takt.peering.incarnation", "Node incarnation", base.HEX),
	seen = ProtoField.uint64("takt.peering.seen", "Seen incarnation", base.HEX),
	stream = ProtoField.uint32("takt.peering.stream", "Stream of subscriptions", base.HEX),
	holds = ProtoField.uint64("takt.peering.version", "Version of subscriptions"),
	base_version = ProtoField.uint64("takt.peering.base", "From version"),
	label = ProtoField.uint32("takt.peering.label", "Label", base.HEX),
	name = ProtoField.string("takt.peering.name", "Name"),
	datapath = ProtoField.string("takt.peering.datapath", "Datapath"),
	longest = ProtoField.uint16("takt.peering.datapath.longest", "Longest payload"),
	flags = ProtoField.uint8("takt.peering.datapath.flags", "Flags", base.HEX),
	udp = ProtoField.bool("takt.peering.datapath.udp", "UDP on the wire", 8, nil, 0x01),
	addressed = ProtoField.bool("takt.peering.datapath.addressed", "Own address", 8, nil, 0x02),
	failed = ProtoField.bool("takt.peering.datapath.failed", "Failed", 8, nil, 0x04),
	works = ProtoField.bool("takt.peering.datapath.works_again", "Works again", 8, nil, 0x08),
	address = ProtoField.ipv6("takt.peering.address", "Address"),
	lane = ProtoField.uint32("takt.peering.lane", "Lane", base.HEX),
	ports = ProtoField.uint8("takt.peering.lane.datapaths", "Has ports of datapaths", base.HEX),
	port = ProtoField.uint16("takt.peering.port", "Port"),
	entries = ProtoField.uint8("takt.peering.entries", "Entries"),
	index = ProtoField.uint8("takt.peering.index", "Lane index", base.DEC, nil, 0x7f),
	withdrawn = ProtoField.bool("takt.peering.withdrawn", "Wants it no more", 8, nil, 0x80),
	ended = ProtoField.uint8("takt.peering.ended", "Ended"),
	next_sequence = ProtoField.uint32("takt.peering.next", "All before have left"),
	public_key = ProtoField.bytes("takt.peering.key", "Public key"),
	-- handshake
	session_number = ProtoField.uint8("takt.handshake.session", "Session"),
	identity = ProtoField.uint8("takt.handshake.identity", "Identity", base.DEC, { [0] = "node", [1] = "group" }),
	header_end = ProtoField.bytes("takt.handshake.header", "End of the header"),
	sealed_counter = ProtoField.uint64("takt.handshake.counter", "Counter"),
	cookie = ProtoField.bytes("takt.handshake.cookie", "Cookie"),
	noise = ProtoField.bytes("takt.handshake.noise", "Noise message"),
	hash = ProtoField.bytes("takt.handshake.hash", "Hash"),
	sealed = ProtoField.bytes("takt.handshake.sealed", "Sealed message"),
	as = ProtoField.uint8("takt.scout.as", "As", base.DEC, as_whom),
	zero = ProtoField.bytes("takt.zero", "Zero"),
	-- beat
	beat_load = ProtoField.uint32("takt.beat.load", "Load (packets)"),
	beat_sender = ProtoField.uint32("takt.beat.sender", "Sender", base.HEX),
	beat_functions = ProtoField.uint64("takt.beat.functions", "Functions", base.HEX),
	beat_sequence = ProtoField.uint64("takt.beat.sequence", "Sequence"),
}
takt.fields = {}
do
	local all = {}
	for _, field in pairs(f) do all[#all + 1] = field end
	takt.fields = all
end

local malformed = ProtoExpert.new("takt.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
takt.experts = { malformed }

local HEADER, TAG, RECORD, LONG = 24, 16, 24, 32
-- Most records of a message.
local MOST_FRAGMENTS = 0x1000000

-- How long a record is and whether it can be one, from `at` on in `room` bytes: its header and payload, or nil and why.
local function measure(buffer, at, room)
	if room < RECORD then return nil, "a record of less than 24 bytes" end
	local length = buffer(at + 16, 4):le_uint()
	local stride = buffer(at + 20, 2):le_uint()
	local class = buffer(at + 22, 1):uint()
	local kind = buffer(at + 23, 1):uint()
	if kind > 3 then return nil, "a record of an unknown kind" end
	local header = (stride > 0 or kind == 1) and LONG or RECORD
	if kind >= 2 and stride > 0 then return nil, "an announcement or acknowledgement with a stride" end
	if room < header then return nil, "a record of less than 32 bytes" end
	local payload = length
	if header == LONG then
		local index = buffer(at + 24, 4):le_uint()
		if stride > 0 then
			-- At most 48 bits: a number of Lua has 53.
			if index * stride >= length then return nil, "a fragment beyond its message" end
			if math.ceil(length / stride) > MOST_FRAGMENTS then return nil, "a message in too many fragments" end
			payload = math.min(stride, length - index * stride)
		elseif index ~= 0 then
			return nil, "a whole message with a fragment index"
		end
	end
	if payload > room - header then return nil, "a payload beyond the end of the datagram" end
	local fits = (kind < 2 or payload == (kind == 2 and 40 or 72)) and class <= 7
	return header, payload, fits
end

-- Padding: to the next multiple of eight from the datagram's beginning, as far as there is any.
local function aligned(at, stop)
	return math.min(math.floor((at + 7) / 8) * 8, stop)
end

-- Whether all of a datagram that is not encrypted is as it should be.
local function is_channel(buffer)
	local length = buffer:len()
	if length < HEADER + RECORD or buffer(0, 1):uint() ~= 2 then return false end
	local protection = buffer(1, 1):uint()
	local count = buffer(2, 2):le_uint()
	if protection > 1 or count == 0 then return false end
	local stop = length - (protection == 1 and TAG or 0)
	local at = HEADER
	for _ = 1, count do
		local header, payload, fits = measure(buffer, at, stop - at)
		if not header or not fits then return false end
		at = aligned(at + header + payload, stop)
	end
	for rest = at, stop - 1 do
		if buffer(rest, 1):uint() ~= 0 then return false end
	end
	return true
end

local function announcement(tree, body)
	tree:add_le(f.oldest, body(0, 4))
	tree:add_le(f.next_record, body(4, 4))
	tree:add_le(f.round_trip, body(8, 8))
	tree:add_le(f.stamp, body(16, 8))
	tree:add_le(f.first_message, body(24, 4))
	tree:add_le(f.next_message, body(28, 4))
	tree:add_le(f.epoch, body(32, 4))
	tree:add_le(f.patience, body(36, 4))
end

local function acknowledgement(tree, body)
	tree:add_le(f.here_before, body(0, 4))
	tree:add_le(f.limit, body(4, 4))
	tree:add_le(f.span, body(8, 4))
	tree:add_le(f.lacking, body(12, 4))
	tree:add_le(f.stamp, body(16, 8))
	tree:add_le(f.held, body(24, 8))
	tree:add(f.here, body(32, 32))
	tree:add_le(f.room_messages, body(64, 4))
	tree:add_le(f.room_bytes, body(68, 4))
end

local function record(buffer, at, stop, tree)
	local header, payload = measure(buffer, at, stop - at)
	if not header then
		tree:add_proto_expert_info(malformed, payload)
		return nil
	end
	local kind = buffer(at + 23, 1):uint()
	local part = tree:add(f.record, buffer(at, header + payload))
	part:set_text(string.format("%s, channel %s, %d bytes", kinds[kind], buffer(at, 8):le_uint64(), payload))
	part:add_le(f.channel, buffer(at, 8))
	part:add_le(f.source, buffer(at + 8, 4))
	part:add_le(f.sequence, buffer(at + 12, 4))
	part:add_le(f.length, buffer(at + 16, 4))
	part:add_le(f.stride, buffer(at + 20, 2))
	local item = part:add(f.class, buffer(at + 22, 1))
	if buffer(at + 22, 1):uint() > 7 then item:add_proto_expert_info(malformed, "a class above 7") end
	part:add(f.kind, buffer(at + 23, 1))
	if header == LONG then
		part:add_le(f.fragment, buffer(at + 24, 4))
		part:add_le(f.number, buffer(at + 28, 4))
	end
	local body = payload > 0 and buffer(at + header, payload)
	if kind == 2 and payload == 40 then
		announcement(part, body)
	elseif kind == 3 and payload == 72 then
		acknowledgement(part, body)
	else
		if kind >= 2 then part:add_proto_expert_info(malformed, "an announcement or acknowledgement of another length") end
		if body then part:add(f.payload, body) end
	end
	return header + payload
end

local function channel(buffer, pinfo, tree)
	local length = buffer:len()
	if length < HEADER then
		tree:add_proto_expert_info(malformed, "a datagram of less than 24 bytes")
		return
	end
	local protection = buffer(1, 1):uint()
	local count = buffer(2, 2):le_uint()
	tree:add(f.version, buffer(0, 1))
	tree:add(f.protection, buffer(1, 1))
	tree:add_le(f.count, buffer(2, 2))
	tree:add_le(f.sender, buffer(4, 4))
	tree:add_le(f.send_time, buffer(8, 8))
	tree:add_le(f.counter, buffer(16, 7), buffer(16, 7):le_uint64())
	tree:add(f.session, buffer(23, 1))
	pinfo.cols.info = string.format("%d records, protection: %s", count, protections[protection] or "unknown")
	if buffer(0, 1):uint() ~= 2 then
		tree:add_proto_expert_info(malformed, "a version other than 2")
		return
	end
	if protection > 2 then
		tree:add_proto_expert_info(malformed, "an unknown protection")
		return
	end
	if count == 0 then
		tree:add_proto_expert_info(malformed, "no record")
		return
	end
	local stop = length
	if protection > 0 then
		stop = length - TAG
		if stop < HEADER then
			tree:add_proto_expert_info(malformed, "no tag")
			return
		end
		tree:add(f.tag, buffer(stop, TAG))
	end
	if protection == 2 then
		if stop > HEADER then tree:add(f.encrypted, buffer(HEADER, stop - HEADER)) end
		return
	end
	local at = HEADER
	for _ = 1, count do
		local took = record(buffer, at, stop, tree)
		if not took then return end
		local after = aligned(at + took, stop)
		if after > at + took then tree:add(f.padding, buffer(at + took, after - at - took)) end
		at = after
	end
	if stop > at then tree:add(f.padding, buffer(at, stop - at)) end
end

-- Reads the fields of a message one after the other. What is beyond its end is an error that `peering` catches.
local Reader = {}
Reader.__index = Reader

function Reader:take(count)
	if count > self.buffer:len() - self.at then error("short", 0) end
	local range = self.buffer(self.at, count)
	self.at = self.at + count
	return range
end

function Reader:add(tree, field, count)
	local range = self:take(count)
	return range, tree:add_le(field, range)
end

function Reader:text(tree, field)
	local count = self:take(1):uint()
	if count == 0 then return "" end
	local range = self:take(count)
	tree:add(field, range)
	return range:string()
end

function Reader:count(most, what)
	local count = self:take(1):uint()
	if count > most then error(string.format("%d %s: %d at most", count, what, most), 0) end
	return count
end

local bodies = {}

bodies[1] = function(reader, tree)
	reader:add(tree, f.seen, 8)
	reader:add(tree, f.stream, 4)
	reader:add(tree, f.holds, 8)
	reader:add(tree, f.label, 4)
	reader:text(tree, f.name)
	local datapaths = reader:count(8, "datapaths")
	for _ = 1, datapaths do
		local technology = reader:text(tree, f.datapath)
		local longest = reader:take(2)
		local part = tree:add_le(f.longest, longest)
		part:append_text(" of " .. technology)
		local flags = reader:take(1)
		local item = tree:add(f.flags, flags)
		for _, flag in ipairs({ f.udp, f.addressed, f.failed, f.works }) do item:add(flag, flags) end
		if flags:bitfield(6, 1) == 1 then tree:add(f.address, reader:take(16)) end
	end
	for _ = 1, reader:count(32, "lanes") do
		reader:add(tree, f.lane, 4)
		local has = reader:take(1)
		tree:add(f.ports, has)
		for datapath = 0, datapaths - 1 do
			if has:bitfield(7 - datapath, 1) == 1 then reader:add(tree, f.port, 2) end
		end
	end
end

bodies[2] = function(reader, tree)
	reader:add(tree, f.stream, 4)
	reader:add(tree, f.base_version, 8)
	reader:add(tree, f.holds, 8)
	for _ = 1, reader:count(120, "entries") do
		reader:add(tree, f.channel, 8)
		local lane = reader:take(1)
		tree:add(f.index, lane)
		tree:add(f.withdrawn, lane)
	end
end

bodies[3] = function(reader, tree)
	reader:add(tree, f.stream, 4)
	reader:add(tree, f.holds, 8)
end

bodies[4] = function() end

bodies[5] = function(reader, tree)
	for _ = 1, reader:count(60, "sources") do
		reader:add(tree, f.index, 1)
		reader:add(tree, f.channel, 8)
		reader:add(tree, f.source, 4)
		reader:add(tree, f.next_sequence, 4)
		reader:add(tree, f.ended, 1)
	end
end

bodies[6] = function(reader, tree)
	for _ = 1, reader:count(20, "nodes") do
		tree:add(f.address, reader:take(16))
		reader:add(tree, f.port, 2)
		if reader:take(1):uint() == 1 then tree:add(f.public_key, reader:take(32)) end
	end
end

local function handshake_header(reader, tree)
	tree:add(f.session_number, reader:take(1))
	tree:add(f.identity, reader:take(1))
end

bodies[16] = function(reader, tree)
	tree:add(f.cookie, reader:take(16))
	tree:add(f.noise, reader:take(112))
	tree:add(f.hash, reader:take(16))
end

bodies[17] = function(reader, tree)
	tree:add(f.hash, reader:take(16))
	tree:add(f.cookie, reader:take(16))
end

bodies[18] = function(reader, tree)
	tree:add(f.noise, reader:take(64))
end

bodies[19] = function(reader, tree)
	local left = reader.buffer:len() - reader.at
	if left < TAG then error("no tag", 0) end
	if left > TAG then tree:add(f.sealed, reader:take(left - TAG)) end
	tree:add(f.tag, reader:take(TAG))
end

bodies[20] = function(reader, tree, how)
	reader:add(tree, f.incarnation, 8)
	tree:add(f.address, reader:take(16))
	reader:add(tree, f.port, 2)
	tree:add(f.zero, reader:take(6))
	if how == 0 then tree:add(f.public_key, reader:take(32)) end
	local tags = (reader.buffer:len() - reader.at) / TAG
	local fits = (how == 0 and tags >= 1 and tags <= 64) or (how == 1 and tags == 1) or (how == 2 and tags == 0)
	if not fits or tags ~= math.floor(tags) then error("tags that do not fit", 0) end
	for _ = 1, tags do tree:add(f.tag, reader:take(TAG)) end
end

local function is_peering(buffer)
	return buffer:len() >= 4 and buffer(0, 4):string() == "TKTP"
end

local function peering(buffer, pinfo, tree)
	local reader = setmetatable({ buffer = buffer, at = 4 }, Reader)
	tree:add(f.magic, buffer(0, 4))
	local function read()
		local version = reader:take(1)
		tree:add(f.version, version)
		if version:uint() ~= 3 then error("a version other than 3", 0) end
		local kind = reader:take(1):uint()
		tree:add(f.type, buffer(5, 1))
		pinfo.cols.info = types[kind] or "unknown type"
		local how
		if kind == 20 then
			tree:add(f.zero, reader:take(1))
			local as = reader:take(1)
			tree:add(f.as, as)
			how = as:uint()
		elseif kind >= 16 then
			handshake_header(reader, tree)
			local rest = reader:take(8)
			if kind == 19 then
				tree:add_le(f.sealed_counter, rest)
			else
				tree:add(f.header_end, rest)
			end
		else
			tree:add(f.zero, reader:take(2))
			reader:add(tree, f.incarnation, 8)
		end
		local body = bodies[kind]
		if not body then error("an unknown type", 0) end
		body(reader, tree, how)
		if reader.at < buffer:len() then error("bytes behind the last field", 0) end
	end
	local whole, why = pcall(read)
	if not whole then tree:add_proto_expert_info(malformed, tostring(why)) end
end

local function is_beat(buffer)
	return buffer:len() >= 4 and buffer(0, 4):string() == "TKBT"
end

-- docs/reference/balance.md
local function beat(buffer, pinfo, tree)
	pinfo.cols.info = "beat"
	tree:add(f.magic, buffer(0, 4))
	if buffer:len() ~= 48 then return tree:add_proto_expert_info(malformed, "a beat of another length than 48 bytes") end
	tree:add(f.version, buffer(4, 1))
	if buffer(4, 1):uint() ~= 2 then return tree:add_proto_expert_info(malformed, "a beat of a version other than 2") end
	tree:add(f.zero, buffer(5, 3))
	tree:add(f.beat_load, buffer(8, 4))
	tree:add(f.beat_sender, buffer(12, 4))
	tree:add(f.beat_functions, buffer(16, 8))
	tree:add(f.beat_sequence, buffer(24, 8))
	tree:add(f.tag, buffer(32, 16))
end

function takt.dissector(buffer, pinfo, tree)
	if buffer:len() == 0 then return 0 end
	-- What the capture has cut off cannot be told from what was never there.
	if buffer:captured_len() < buffer:reported_len() then return 0 end
	pinfo.cols.protocol = "Takt"
	local part = tree:add(takt, buffer())
	if is_peering(buffer) then
		peering(buffer, pinfo, part)
	elseif is_beat(buffer) then
		beat(buffer, pinfo, part)
	else
		channel(buffer, pinfo, part)
	end
	return buffer:len()
end

local function heuristic(buffer, pinfo, tree)
	if buffer:captured_len() < buffer:reported_len() then return false end
	if not (is_peering(buffer) or is_beat(buffer) or is_channel(buffer)) then return false end
	takt.dissector(buffer, pinfo, tree)
	return true
end

takt:register_heuristic("udp", heuristic)

local trailer = Proto("takt.trailer", "Takt trailer")
local t = {
	sequence = ProtoField.uint32("takt.trailer.sequence", "Number in its flow"),
	sent = ProtoField.int64("takt.trailer.sent", "At the sender's egress (TAI, ns)"),
}
trailer.fields = { t.sequence, t.sent }

-- All its words add up to nothing (RFC 1071).
local function is_trailer(buffer)
	if buffer:captured_len() < 18 or buffer(0, 4):string() ~= "TkS1" then return false end
	local sum = 0
	for at = 0, 16, 2 do sum = sum + buffer(at, 2):uint() end
	while sum > 0xffff do sum = math.floor(sum / 0x10000) + sum % 0x10000 end
	return sum == 0xffff
end

trailer:register_heuristic("eth.trailer", function(buffer, _, tree)
	if not is_trailer(buffer) then return false end
	local part = tree:add(trailer, buffer(0, 18))
	part:add(t.sequence, buffer(4, 4))
	part:add(t.sent, buffer(8, 8))
	return true
end)

local ports = DissectorTable.get("udp.port")
local registered
function takt.prefs_changed()
	if registered then ports:remove(registered, takt) end
	registered = takt.prefs.ports
	ports:add(registered, takt)
end
registered = takt.prefs.ports
ports:add(registered, takt)
