// Asks before something runs, and says what became of it.

import { Box, Button, CloseButton, Dialog, Portal, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";

import { ApiError } from "../api";
import { LANGUAGE, visible } from "../text";
import { Note } from "./basics";

interface Props {
  name: string;
  /** Of the button that opens it; the same, unless it is given. */
  opener?: string;
  children: ReactNode;
  /** Does it; returns what to say then. */
  act: () => Promise<ReactNode>;
  disabled?: boolean;
  /** Whether what the dialog says can be done. */
  canAct?: boolean;
  /** Set by whoever opens it otherwise, too. */
  isOpen?: boolean;
  onOpenChange?: (isOpen: boolean) => void;
  title?: string;
}

export function Confirm({ name, opener = name, children, act, disabled, canAct = true, onOpenChange, title, ...props }: Props) {
  const [isOwnOpen, setOpen] = useState(false);
  const isOpen = props.isOpen ?? isOwnOpen;
  const [isBusy, setBusy] = useState(false);
  const [said, setSaid] = useState<ReactNode>(null);
  const run = async () => {
    setBusy(true);
    try {
      setSaid(await act());
    } catch (error) {
      setSaid(
        <Note role="alert">
          {reasonOf(error)}
          {isRefusal(error) ? null : "It may have begun all the same: look at the DAG's runs before you try again."}
        </Note>,
      );
    } finally {
      setBusy(false);
    }
  };
  const open = (isNow: boolean) => {
    // What was sent cannot be taken back, and its answer would be lost.
    if (isBusy) return;
    setOpen(isNow);
    if (isNow) setSaid(null);
    onOpenChange?.(isNow);
  };
  return (
    <Dialog.Root onOpenChange={({ open: isNow }) => open(isNow)} open={isOpen}>
      <Dialog.Trigger asChild>
        <Button disabled={disabled} size="sm" title={title} variant="outline">
          {opener}
        </Button>
      </Dialog.Trigger>
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content {...LANGUAGE}>
            <Dialog.Header>
              <Dialog.Title>{name}</Dialog.Title>
            </Dialog.Header>
            <Dialog.Body overflowWrap="anywhere">
              {said ?? <Box fontSize="sm">{children}</Box>}
            </Dialog.Body>
            <Dialog.Footer>
              <Button disabled={isBusy} onClick={() => open(false)} variant="outline">
                {said === null ? "Cancel" : "Close"}
              </Button>
              {said === null ? (
                <Button disabled={!canAct} loading={isBusy} onClick={() => void run()}>
                  {name}
                </Button>
              ) : null}
            </Dialog.Footer>
            <Dialog.CloseTrigger asChild>
              <CloseButton size="sm" />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}

export function reasonOf(error: unknown): ReactNode {
  if (!isRefusal(error)) return <Text>Airflow gave no answer: {visible(String(error))}</Text>;
  if (error.status === 403) return "Airflow does not let you do this in this DAG.";
  return <Text>Airflow refused it: {visible(error.message)}</Text>;
}

function isRefusal(error: unknown): error is ApiError {
  return error instanceof ApiError && error.status < 500;
}
