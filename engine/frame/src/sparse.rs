//! SPARSE frames: what a compactor leaves of frames when it takes records out. Spec: spec/frame.md §6.
//!
//! **Invariants**
//! - A record keeps its sequence, its effective timestamp, and every byte it was sent with but `data_end`.
//! - A SPARSE frame carries no token, condition or producer: it is never appended.
//!
//! **Not here**: which records to keep.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::batch::seal;
use crate::builder::{u32_of, unsealed_server};
use crate::error::{FrameError, valid, within};
use crate::layout::{
    ClientSection, ENTRY_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SPARSE_DELTA_BYTES,
    SPARSE_TIMESTAMP_BYTES, ServerSection, TableEntry, flag,
};
use crate::limits::FrameLimits;
use crate::record::RecordView;
use crate::stamp::Stamp;
use crate::view::FrameView;

/// Seals the records, in rising order of sequence, into a SPARSE frame. Their sequences and effective timestamps are
/// kept one by one; arrival, epoch, mode, cap and floor are taken from `stamps` (usually
/// [`FrameView::server_stamp`] of the frame they are from), the base sequence is that of the first record.
///
/// # Errors
/// [`FrameError::Empty`] without records; [`FrameError::Invalid`] of `sequence_delta` or `effective_timestamp_ms`
/// when they do not rise, or do not fit; those of [`FrameView::parse`] about `limits`.
pub fn seal_sparse<'a>(
    stamps: &Stamp,
    records: impl IntoIterator<Item = RecordView<'a>>,
    limits: &FrameLimits,
) -> Result<Vec<u8>, FrameError> {
    let records: Vec<_> = records.into_iter().collect();
    let (Some(first), Some(last)) = (records.first(), records.last()) else {
        return Err(FrameError::Empty);
    };
    let base_sequence = first.sequence;
    let span = last
        .sequence
        .checked_sub(base_sequence)
        .and_then(|delta| delta.checked_add(1))
        .ok_or(FrameError::Invalid {
            field: "sequence_delta",
            value: last.sequence,
        })?;
    let columns_bytes = ENTRY_BYTES + SPARSE_DELTA_BYTES + SPARSE_TIMESTAMP_BYTES;
    let areas_bytes: usize = records.iter().map(|record| record.area.len()).sum();
    let frame_bytes = FRAME_HEADER_BYTES + records.len() * columns_bytes + areas_bytes;
    within("frame", frame_bytes, limits.frame_bytes_max())?;
    let stamp = Stamp {
        base_sequence,
        ..*stamps
    };
    let mut server = ServerSection {
        sequence_span: span.into(),
        ..unsealed_server(FrameKind::Sparse, frame_bytes)
    };
    stamp.write_to(&mut server);
    let header = FrameHeader {
        server,
        client: client_section(&records),
    };
    let mut frame = Vec::with_capacity(frame_bytes);
    frame.extend_from_slice(header.as_bytes());
    write_columns(&mut frame, &records, base_sequence)?;
    for record in &records {
        frame.extend_from_slice(record.area);
    }
    seal(&mut frame);
    // Records of a trusted view have not been validated, so what was made of them is.
    FrameView::parse(&frame, limits)?;
    Ok(frame)
}

fn write_columns(
    frame: &mut Vec<u8>,
    records: &[RecordView<'_>],
    base_sequence: u64,
) -> Result<(), FrameError> {
    let mut data_end = 0;
    for record in records {
        data_end += record.area.len();
        let (mut entry, _) =
            TableEntry::read_from_prefix(record.entry).expect("an entry is as long as an entry");
        entry.data_end = u32_of(data_end).into();
        frame.extend_from_slice(entry.as_bytes());
    }
    for record in records {
        let delta = record.sequence.wrapping_sub(base_sequence);
        let fits = u32::try_from(delta);
        valid(fits.is_ok(), "sequence_delta", delta)?;
        frame.extend_from_slice(U32::new(fits.unwrap_or(0)).as_bytes());
    }
    for record in records {
        frame.extend_from_slice(U64::new(record.timestamp_ms).as_bytes());
    }
    Ok(())
}

fn client_section(records: &[RecordView<'_>]) -> ClientSection {
    let metered_bytes: usize = records.iter().map(metered).sum();
    let keyed = records.iter().any(|record| record.key.is_some());
    ClientSection {
        record_count: u32_of(records.len()).into(),
        flags: if keyed { flag::KEYED } else { 0 }.into(),
        producer_id_bytes: 0.into(),
        fencing_token: U64::ZERO,
        match_sequence: U64::ZERO,
        producer_epoch: U64::ZERO,
        producer_sequence: U64::ZERO,
        metered_bytes: U64::new(metered_bytes as u64),
        reserved: [0; 16],
    }
}

fn metered(record: &RecordView<'_>) -> usize {
    let headers: usize = record
        .headers()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    record.key.map_or(0, <[u8]>::len) + headers + record.payload.len()
}
