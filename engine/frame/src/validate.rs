//! Validation: every rule that a frame's values are held against. Spec: spec/frame.md §2, §3, §6.
//!
//! **Invariants**
//! - One pass over the table, whatever it holds; headers are walked only where a record has some.
//! - Sums are u64 over u32 fields of at most 2^32 entries: they cannot overflow.
//!
//! **Not here**: checksums of the first section (`stamp`), slicing (`view`).

use crate::error::{FrameError, at_most, valid, within};
use crate::layout::{
    ClientSection, FrameHeader, FrameKind, HEADER_PREFIX_BYTES, ServerSection, TableEntry, flag,
    record_flag,
};
use crate::limits::FrameLimits;
use crate::record::Headers;
use crate::timestamp::TimestampMode;
use crate::view::FrameView;

/// Checks every field of the header but lengths and checksums (FRAME-3, FRAME-6, FRAME-7).
pub(crate) fn header(header: &FrameHeader) -> Result<FrameKind, FrameError> {
    let kind = server_fields(&header.server)?;
    let (server, client) = (&header.server, &header.client);
    client_fields(client)?;
    let (span, count) = (
        server.sequence_span.get(),
        u64::from(client.record_count.get()),
    );
    match kind {
        FrameKind::Plain => valid(span == count, "sequence_span", span)?,
        FrameKind::Sparse => {
            let holds = span >= count && span <= 1 << u32::BITS;
            valid(holds, "sequence_span", span)?;
            let flags = client.flags.get();
            valid(flags & !flag::KEYED == 0, "flags", flags)?;
        }
    }
    let base = server.base_sequence.get();
    valid(base.checked_add(span).is_some(), "base_sequence", base)?;
    Ok(kind)
}

fn server_fields(server: &ServerSection) -> Result<FrameKind, FrameError> {
    let kind = FrameKind::of(server.kind).ok_or(FrameError::Invalid {
        field: "kind",
        value: server.kind.into(),
    })?;
    let mode = server.timestamp_mode;
    valid(TimestampMode::of(mode).is_some(), "timestamp_mode", mode)?;
    valid(server.cap <= 1, "cap", server.cap)?;
    zero("reserved (server section)", &server.reserved)?;
    Ok(kind)
}

fn client_fields(client: &ClientSection) -> Result<(), FrameError> {
    let count = client.record_count.get();
    valid(count > 0, "record_count", count)?;
    let flags = client.flags.get();
    valid(flags & !flag::ALL == 0, "flags", flags)?;
    let both = flag::MATCH_EMPTY | flag::MATCH_AT;
    valid(flags & both != both, "flags", flags)?;
    let only_with =
        |flag: u16, field, value: u64| valid(flags & flag != 0 || value == 0, field, value);
    only_with(flag::FENCED, "fencing_token", client.fencing_token.get())?;
    only_with(
        flag::MATCH_AT,
        "match_sequence",
        client.match_sequence.get(),
    )?;
    let id_bytes = client.producer_id_bytes.get();
    only_with(flag::PRODUCER, "producer_id_bytes", id_bytes.into())?;
    only_with(
        flag::PRODUCER,
        "producer_epoch",
        client.producer_epoch.get(),
    )?;
    only_with(
        flag::PRODUCER,
        "producer_sequence",
        client.producer_sequence.get(),
    )?;
    let holds = flags & flag::PRODUCER == 0 || id_bytes > 0;
    valid(holds, "producer_id_bytes", id_bytes)?;
    zero("reserved (client section)", &client.reserved)
}

/// Reserved bytes are zero, so that a later version may use them (FRAME-3).
fn zero(field: &'static str, bytes: &[u8]) -> Result<(), FrameError> {
    let nonzero = bytes.iter().copied().find(|byte| *byte != 0);
    nonzero.map_or(Ok(()), |byte| valid(false, field, byte))
}

/// Checks the limits that the header alone can break, and the whole table (FRAME-8 to FRAME-12).
pub(crate) fn body(view: &FrameView<'_>, limits: &FrameLimits) -> Result<(), FrameError> {
    let client = &view.header.client;
    at_most("records", view.entries.len(), limits.records_max)?;
    within(
        "producer_id",
        view.producer_id.len(),
        limits.producer_id_bytes_max,
    )?;
    let metered = client.metered_bytes.get();
    if metered > limits.batch_bytes_max as u64 {
        return Err(FrameError::TooLarge {
            what: "batch",
            bytes: metered,
            limit: limits.batch_bytes_max as u64,
        });
    }
    let sums = table(view, limits)?;
    let keyed = client.flags.get() & flag::KEYED != 0;
    valid(keyed == sums.keyed, "flags", client.flags.get())?;
    valid(metered == sums.metered_bytes, "metered_bytes", metered)?;
    match view.kind() {
        FrameKind::Plain => Ok(()),
        FrameKind::Sparse => sparse_columns(view),
    }
}

#[derive(Default)]
struct Sums {
    metered_bytes: u64,
    headers: usize,
    keyed: bool,
}

fn table(view: &FrameView<'_>, limits: &FrameLimits) -> Result<Sums, FrameError> {
    let mut sums = Sums::default();
    let mut start = 0_usize;
    for entry in view.entries {
        let end = entry.data_end.get() as usize;
        let Some(area) = view.data.get(start..end) else {
            return Err(FrameError::Invalid {
                field: "data_end",
                value: end as u64,
            });
        };
        one_record(entry, area, limits, &mut sums)?;
        start = end;
    }
    valid(start == view.data.len(), "data_end", start as u64)?;
    at_most("headers", sums.headers, limits.headers_max)?;
    Ok(sums)
}

fn one_record(
    entry: &TableEntry,
    area: &[u8],
    limits: &FrameLimits,
    sums: &mut Sums,
) -> Result<(), FrameError> {
    let flags = entry.flags.get();
    valid(flags & !record_flag::ALL == 0, "record flags", flags)?;
    let timestamp = entry.timestamp_ms.get();
    let holds = flags & record_flag::TIMESTAMP != 0 || timestamp == 0;
    valid(holds, "timestamp_ms", timestamp)?;
    let key = entry.key_len();
    let key_bytes = key.unwrap_or(0);
    within("key", key_bytes, limits.key_bytes_max)?;
    let holds = key.is_some() || flags & record_flag::TOMBSTONE == 0;
    valid(holds, "record flags", flags)?;
    let lead = entry.lead_bytes();
    let payload_bytes = (area.len() as u64).checked_sub(lead);
    let payload_bytes = payload_bytes.ok_or(FrameError::Invalid {
        field: "headers_bytes",
        value: entry.headers_bytes.get().into(),
    })?;
    let headers_bytes = entry.headers_bytes.get() as usize;
    let names_and_values = if headers_bytes == 0 {
        0
    } else {
        let count = headers(&area[key_bytes..key_bytes + headers_bytes])?;
        sums.headers += count;
        headers_bytes - count * HEADER_PREFIX_BYTES
    };
    let record_bytes = payload_bytes as usize + names_and_values;
    within("record", record_bytes, limits.record_bytes_max)?;
    sums.metered_bytes += (record_bytes + key_bytes) as u64;
    sums.keyed |= key.is_some();
    Ok(())
}

/// How many headers the bytes are made of, exactly.
fn headers(raw: &[u8]) -> Result<usize, FrameError> {
    let mut headers = Headers(raw);
    let count = headers.by_ref().count();
    valid(headers.rest().is_empty(), "headers", raw.len() as u64)?;
    Ok(count)
}

/// Deltas rise strictly from 0 to the span; effective timestamps never fall (FRAME-12).
fn sparse_columns(view: &FrameView<'_>) -> Result<(), FrameError> {
    let mut expected_min = 0_u64;
    for (index, delta) in view.deltas.iter().enumerate() {
        let delta = u64::from(delta.get());
        let holds = delta >= expected_min && (index > 0 || delta == 0);
        valid(holds, "sequence_delta", delta)?;
        expected_min = delta + 1;
    }
    valid(
        expected_min == view.sequence_span(),
        "sequence_span",
        view.sequence_span(),
    )?;
    let mut before = 0;
    for timestamp in view.timestamps {
        let timestamp = timestamp.get();
        valid(timestamp >= before, "effective_timestamp_ms", timestamp)?;
        before = timestamp;
    }
    Ok(())
}
